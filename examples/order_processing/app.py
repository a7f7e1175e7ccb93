"""The web service: an order comes in, is on the disk, and is answered. The saga runs behind it.

Run it with `uvicorn app:app` in this folder; `DATA` names the directory of the log and the database.
"""

import os
from pathlib import Path
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from participants import Participants, Unsteady
from saga import OrderEnded, OrderPlaced, PlaceOrder, register

from penstock import ScalableMessageBus
from penstock.integrations import HealthRoutes, Service

DATA = Path(os.environ.get("DATA", "./data"))
DATA.mkdir(parents=True, exist_ok=True)

participants = Participants(str(DATA / "shop.db"), Unsteady())
service = Service(f"log:{DATA / 'log'}", name="shop")
register(service, participants)
app = FastAPI(lifespan=service.lifespan)
app.add_middleware(HealthRoutes, observer=service.observer)

Bus = Annotated[ScalableMessageBus, Depends(service.get_bus)]


@service.on(OrderEnded, group="mail")
async def mail(ended: OrderEnded) -> None:
    print(f"{ended.order_id}: {'confirmed' if ended.confirmed else ended.reason}", flush=True)


@app.put("/orders/{order_id}", status_code=202)
async def place(order_id: str, order: dict[str, str], bus: Bus) -> dict[str, str]:
    """PUT with an id of the caller: who got no answer asks again, and there is one order all the same."""
    placed = OrderPlaced(
        order_id, order["customer"], order["article"], order["address"], int(order["cents"])
    )
    result = await bus.execute(PlaceOrder(placed), timeout=10)
    if not result.success:
        raise HTTPException(503, detail=str(result.code))
    return {"order_id": order_id}


@app.get("/orders/{order_id}")
async def look(order_id: str) -> dict[str, str]:
    state, reason = participants.decided(order_id)
    return {"state": state, "reason": reason}
