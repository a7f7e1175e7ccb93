"""A bus with the life of a web application: FastAPI, Starlette, Litestar, or none."""

import asyncio
import json
import os
import signal
from contextlib import asynccontextmanager
from typing import Annotated

import httpx
import pytest
from fastapi import Depends, FastAPI
from litestar import Litestar, post
from litestar.di import NamedDependency, Provide
from litestar.params import FromPath
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from penstock import Command, Event, ScalableMessageBus, StreamingScalingManager, System, topic
from penstock.errors import InvalidOption, UsageError
from penstock.integrations import HealthRoutes, Service
from penstock.observe import Observer
from penstock.testing import VirtualClock


@topic("orders")
class Placed(Event):
    number: int = 0


class Double(Command[int]):
    number: int = 0


def service_with(seen, **options):
    service = Service("memory:", **options)

    @service.on(Placed)
    async def note(event):
        seen.append(event.number)

    @service.handles(Double)
    async def double(command):
        return 2 * command.number

    return service


def fastapi_app(service):
    app = FastAPI(lifespan=service.lifespan)
    app.add_middleware(HealthRoutes, observer=service.observer)

    @app.post("/orders/{number}")
    async def place(
        number: int, bus: Annotated[ScalableMessageBus, Depends(service.get_bus)]
    ) -> int:
        await bus.publish(Placed(number))
        return await bus.send(Double(number))

    return app


def starlette_app(service):
    async def place(request):
        number = request.path_params["number"]
        await service.bus.publish(Placed(number))
        return JSONResponse(await service.bus.send(Double(number)))

    app = Starlette(
        routes=[Route("/orders/{number:int}", place, methods=["POST"])], lifespan=service.lifespan
    )
    app.add_middleware(HealthRoutes, observer=service.observer)
    return app


def litestar_app(service):
    @post("/orders/{number:int}")
    async def place(number: FromPath[int], bus: NamedDependency[ScalableMessageBus]) -> int:
        await bus.publish(Placed(number))
        return await bus.send(Double(number))

    app = Litestar(
        [place],
        lifespan=[service.lifespan],
        dependencies={"bus": Provide(service.get_bus, sync_to_thread=False)},
        signature_types=[ScalableMessageBus],
    )
    return HealthRoutes(app, service.observer)


@asynccontextmanager
async def served(app):
    """A client of an application, between its start and its end, as a server runs it."""
    told: asyncio.Queue[dict[str, str]] = asyncio.Queue()
    heard: asyncio.Queue[str] = asyncio.Queue()

    async def send(message):
        heard.put_nowait(message["type"])

    scope = {"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}
    running = asyncio.create_task(app(scope, told.get, send))
    for event in ("startup", "shutdown"):
        told.put_nowait({"type": f"lifespan.{event}"})
        assert await asyncio.wait_for(heard.get(), 120) == f"lifespan.{event}.complete"
        if event == "startup":
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://test") as web:
                yield web
    await running


@pytest.mark.parametrize("make", [fastapi_app, starlette_app, litestar_app])
async def test_an_application_has_a_bus_health_and_metrics(make):
    seen: list[int] = []
    service = service_with(seen)
    async with served(make(service)) as web:
        assert (await web.post("/orders/21")).json() == 42
        health = await web.get("/healthz")
        assert (health.status_code, health.json()["alive"]) == (200, True)
        ready = await web.get("/readyz")
        assert (ready.status_code, ready.json()["ready"]) == (200, True)
        text = (await web.get("/metrics")).text
        families = {one.name: one for one in text_string_to_metric_families(text)}
        [sample] = families["penstock_commands_processed"].samples
        assert (sample.value, sample.labels) == (1, {"bus": "bus"})
        assert (await web.get("/nothing")).status_code == 404
        assert (await web.post("/healthz")).status_code == 405
        assert (await web.head("/healthz")).content == b""
    assert seen == [21], "the bus was drained"
    with pytest.raises(UsageError, match="does not run"):
        service.get_bus()


async def answer(observer, path, method="GET"):
    """What the routes answer, without a framework: the status and the body."""
    sent: list[dict] = []

    async def send(message):
        sent.append(message)

    async def receive():
        return {"type": "http.request"}

    async def application(scope, receive, send):
        raise AssertionError("not for the application")

    routes = HealthRoutes(application, observer, prefix="/ops")
    await routes({"type": "http", "path": path, "method": method}, receive, send)
    return sent[0]["status"], sent[1]["body"]


async def test_a_stall_is_an_unhealthy_process_and_says_why():
    clock, gate = VirtualClock(), asyncio.Event()
    observer = Observer(system=System(clock=clock))
    service = Service("memory:", observer=observer)
    async with service:

        @service.on(Placed)
        async def stuck(event):
            await gate.wait()

        await service.bus.publish(Placed(1))
        await asyncio.sleep(0)
        assert (await answer(observer, "/ops/healthz"))[0] == 200
        clock.advance(30)
        for path in ("/ops/healthz", "/ops/readyz"):
            status, body = await answer(observer, path)
            assert status == 503
            [stall] = json.loads(body)["stalls"]
            assert (stall["topic"], stall["cause"]) == ("orders", "handler running")
            assert "stack" not in stall
        gate.set()
        await service.bus.settle()
        assert (await answer(observer, "/ops/healthz"))[0] == 200


async def test_a_process_that_drains_is_not_ready():
    seen = []
    service = service_with([])

    @service.on(Placed)
    async def late(event):
        seen.append(await answer(service.observer, "/ops/readyz"))

    await service.start()
    service.bus.publish_nowait(Placed(1))
    await service.stop()
    [(status, body)] = seen
    assert status == 503
    assert "the process drains" in json.loads(body)["reasons"]


async def test_what_cannot_be_drained_in_time_is_reported(caplog):
    service = Service("memory:", drain_seconds=0.01)

    @service.on(Placed)
    async def endless(event):
        await asyncio.Event().wait()

    async with service:
        await service.bus.publish(Placed(1))
        await asyncio.sleep(0)
    assert service.report is not None
    assert [one.message for one in service.report.undrained] == [Placed(1)]
    assert "1 events that were not handled" in caplog.text


async def test_it_can_be_opened_again_and_brings_other_parts():
    seen: list[int] = []
    service = service_with(seen, also=(lambda: StreamingScalingManager("memory:"),))
    for number in (1, 2):
        async with service:
            await service.bus.publish(Placed(number))
            assert len((await service.observer.look()).streams) == 1
            with pytest.raises(UsageError, match="runs already"):
                await service.start()
    assert seen == [1, 2]
    assert not service.observer.snapshot().buses


async def test_sigterm_ends_a_service_without_a_framework():
    seen: list[int] = []
    service = service_with(seen)
    running = asyncio.create_task(service.run())
    while service._bus is None:
        await asyncio.sleep(0)
    service.bus.publish_nowait(Placed(5))
    os.kill(os.getpid(), signal.SIGTERM)
    report = await asyncio.wait_for(running, 120)
    assert report.drained
    assert seen == [5]


def test_a_deadline_is_more_than_nothing():
    with pytest.raises(InvalidOption, match="drain_seconds"):
        Service("memory:", drain_seconds=0)
