"""A dashboard over brokers that are not there, whose URLs hold the canary. Writes its address."""

import asyncio
import logging
import sys
from contextlib import suppress

from penstock.dashboard import Dashboard
from penstock.errors import PenstockError
from penstock.observe import Observer
from penstock.transports import shared_registry


async def main(urls: list[str]) -> None:
    async with Observer(look_seconds=0.5) as observer:
        for number, url in enumerate(urls):
            transport = shared_registry().make(url)
            with suppress(PenstockError):
                await transport.open()
            observer.watch(transport, name=f"broker-{number}")
        with suppress(PenstockError):
            await observer.look()
        async with Dashboard(observer, port=0) as dashboard:
            print(dashboard.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    logging.disable(logging.ERROR)
    asyncio.run(main(sys.argv[1:]))
