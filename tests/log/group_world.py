"""What the tests of the members of a group share."""

from penstock.log.group_member import Member
from penstock.log.names import group_state_key

TOPICS = {"orders": 4}
LEASE = 10.0
KEY = group_state_key("billing")


def numbers(partitions) -> list[int]:
    return sorted(partition for _, partition in partitions)


async def settle(*members: Member) -> None:
    """Everybody looks, releases what it should, and looks again."""
    for one in members:
        await one.heartbeat()
        await one.release()
    for one in members:
        await one.heartbeat()
