"""Applications of Starlette and FastAPI, as their documentation writes them (tests/features/test_asgi.py)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import (
    FileResponse,
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

HERE = Path(__file__).parent


class Database:
    """Like a pool of connections, it works only on the event loop on which it was opened."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.lock = asyncio.Lock()

    async def fetch(self) -> str:
        """Return a row."""
        assert asyncio.get_running_loop() is self.loop
        async with self.lock:
            await asyncio.wait_for(asyncio.sleep(0.001), 10)
        return "row"


@contextlib.asynccontextmanager
async def starlette_lifespan(app: Starlette) -> AsyncIterator[dict[str, Any]]:
    """Open the database, and close it."""
    yield {"database": Database()}
    (HERE / "closed").touch()


async def home(request: Request) -> Response:
    """Show the URL of another page, and a row."""
    row = await request.state.database.fetch()
    return JSONResponse(
        {"user": str(request.url_for("user", name="ada")), "row": row, "at": request.url.path}
    )


def user(request: Request) -> Response:
    """A plain function, which Starlette runs in a thread."""
    return PlainTextResponse(f"hello {request.path_params['name']}")


async def numbers(request: Request) -> Response:
    """Stream lines."""

    async def lines() -> AsyncIterator[str]:
        for number in range(5):
            yield f"{number}\n"
            await asyncio.sleep(0)

    return StreamingResponse(lines(), media_type="text/plain")


async def upload(request: Request) -> Response:
    """Count the bytes of the body, as they come."""
    size = 0
    async for piece in request.stream():
        size += len(piece)
    return JSONResponse({"size": size, "type": request.headers["content-type"]})


async def form(request: Request) -> Response:
    """Show the received form as JSON, and a cookie."""
    sent = await request.json()
    response = JSONResponse({"sent": sent, "cookie": request.cookies.get("name")}, status_code=201)
    response.set_cookie("name", "ada")
    response.set_cookie("again", "two")
    return response


async def source(request: Request) -> Response:
    """Send a file."""
    return FileResponse(HERE / "framework_apps.py")


async def task(request: Request) -> Response:
    """Answer, and go on afterwards."""
    return PlainTextResponse("soon", background=BackgroundTask((HERE / "done").touch))


async def move(request: Request) -> Response:
    """Lead elsewhere."""
    return RedirectResponse(request.url_for("home"))


async def fault(request: Request) -> Response:
    """Fail."""
    raise ValueError("a fault in Starlette")


class Timing(BaseHTTPMiddleware):
    """A middleware that runs the application in a task group."""

    async def dispatch(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Add a field."""
        response = await call_next(request)
        response.headers["x-middleware"] = "was here"
        return response


star = Starlette(
    routes=[
        Route("/", home),
        Route("/user/{name}", user),
        Route("/numbers", numbers),
        Route("/upload", upload, methods=["POST"]),
        Route("/form", form, methods=["POST"]),
        Route("/source", source),
        Route("/task", task),
        Route("/move", move),
        Route("/fault", fault),
        Mount("/static", StaticFiles(directory=HERE)),
    ],
    middleware=[Middleware(Timing)],
    lifespan=starlette_lifespan,
)


@contextlib.asynccontextmanager
async def fast_lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open the database."""
    app.state.database = Database()
    yield


fast = FastAPI(lifespan=fast_lifespan)


class Item(BaseModel):
    """What one buys."""

    name: str
    price: float


def session() -> Iterator[str]:
    """A dependency that is opened and closed, in a thread."""
    yield "session"


async def row() -> str:
    """A dependency that awaits."""
    found: str = await fast.state.database.fetch()
    return found


@fast.get("/items/{number}")
async def read(number: int, found: Annotated[str, Depends(row)], q: str | None = None) -> dict[str, Any]:
    """Return an item."""
    if number == 404:
        raise HTTPException(404, "no such item")
    return {"number": number, "q": q, "row": found}


@fast.post("/items", status_code=201)
def create(item: Item, opened: Annotated[str, Depends(session)]) -> dict[str, Any]:
    """Take an item, in a thread."""
    return {"name": item.name, "price": item.price, "session": opened}


@fast.get("/fault")
async def fail() -> None:
    """Fail."""
    raise ValueError("a fault in FastAPI")
