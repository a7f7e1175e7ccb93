"""A command that needs an approval, and ways to wait for one."""

import asyncio

from penstock.bus.approval import Approval
from penstock.bus.bus import MessageBus
from penstock.messages import Command
from penstock.system import System

HOUR = 3_600


class Refund(Command[str]):
    order: str
    amount: int = 100


class Plain(Command[str]):
    text: str = ""


def make_bus(clock, refunded, **options):
    bus = MessageBus(system=System(clock=clock), **options)

    @bus.handles(Refund, approval=Approval(expires=HOUR))
    async def refund(command, envelope):
        refunded.append((command, envelope.id))
        return f"refunded {command.order}"

    return bus


async def asked(bus, count=1):
    """What waits, when so many do."""
    while len(bus.approvals.pending()) < count:
        await asyncio.sleep(0)
    for _ in range(5):  # the journal, the timer, the callbacks
        await asyncio.sleep(0)
    return bus.approvals.pending()


async def request(bus, command=None, **options):
    """A task that waits for an approval, and what is shown of it."""
    before = len(bus.approvals.pending())
    task = asyncio.ensure_future(bus.execute(command or Refund("o-1"), **options))
    return task, (await asked(bus, before + 1))[-1]


async def settled():
    for _ in range(20):
        await asyncio.sleep(0)
