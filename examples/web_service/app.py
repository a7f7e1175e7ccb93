"""A web service on a crash-safe log: orders come in over HTTP, and are billed in the background.

Run it with `uvicorn app:app` in this folder; `DATA` names the directory of the log.
"""

import asyncio
import os
from typing import Annotated

from fastapi import Depends, FastAPI

from penstock import Event, ScalableMessageBus, topic
from penstock.integrations import HealthRoutes, Service
from penstock.observe import Observer


@topic("orders", key="order_id")
class OrderPlaced(Event):
    order_id: str
    total: float


service = Service(f"log:{os.environ.get('DATA', './data')}", observer=Observer(look_seconds=1.0))
app = FastAPI(lifespan=service.lifespan)
app.add_middleware(HealthRoutes, observer=service.observer)

Bus = Annotated[ScalableMessageBus, Depends(service.get_bus)]


@service.on(OrderPlaced, group="billing", retries=5)
async def bill(order: OrderPlaced) -> None:
    await asyncio.sleep(0.2)
    print(f"billed {order.order_id}: {order.total:.2f}", flush=True)


@app.post("/orders/{order_id}", status_code=202)
async def place(order_id: str, total: float, bus: Bus) -> dict[str, str]:
    await bus.publish(OrderPlaced(order_id, total))  # on the disk when this returns
    return {"order_id": order_id}
