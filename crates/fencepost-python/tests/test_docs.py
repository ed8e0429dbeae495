"""Every Python block of docs/guide/python.md and the README runs, top to bottom, against real servers; and
what the page lists is what there is."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import logging
import re
import types
from pathlib import Path
from typing import Any

import pytest

import fencepost
import fencepost.aio

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/guide/python.md").read_text()


def blocks(text: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", text, re.DOTALL)


BLOCKS = blocks(PAGE)


def run(code: str, names: dict[str, Any]) -> None:
    compiled = compile(code, "docs/guide/python.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(compiled, names)
    if inspect.iscoroutine(result):
        asyncio.run(result)


@pytest.fixture
def page(redis_url: str, postgres_url: str) -> Any:
    """Runs a block with the page's servers replaced by real ones, and `locks` connected."""
    locks = fencepost.connect(redis_url)
    saved: list[tuple[str, int]] = []

    async def asave(order: str, fence: int) -> None:
        saved.append((order, fence))

    names: dict[str, Any] = {
        "__name__": "page",
        "fencepost": fencepost,
        "locks": locks,
        "save": lambda order, fence: saved.append((order, fence)),
        "asave": asave,
    }

    def go(code: str) -> dict[str, Any]:
        code = code.replace("redis://127.0.0.1:6379", redis_url).replace(
            "postgres://localhost/shop", postgres_url
        )
        run(code, names)
        return names

    yield go
    logging.getLogger("fencepost").setLevel(logging.NOTSET)
    locks.close()


MODULES = ("", ".aio", ".fence", ".testing", ".compat.redis_lock", ".compat.redlock")


TOLD = (property, classmethod, staticmethod, type, types.FunctionType)
"""What can have a docstring; plain values have none at run time."""


def undocumented(module: Any) -> list[str]:
    """What a module offers without a docstring, with the methods and properties of its classes."""
    offered = {name: getattr(module, name) for name in module.__all__}
    for name, one in list(offered.items()):
        for base in one.__mro__ if isinstance(one, type) else ():
            if base.__module__.startswith("fencepost"):
                offered |= {
                    f"{name}.{part}": found for part, found in vars(base).items() if not part.startswith("_")
                }
    return [name for name, one in offered.items() if isinstance(one, TOLD) and not one.__doc__]


@pytest.mark.parametrize("module", MODULES)
def test_every_public_name_has_a_docstring(module: str) -> None:
    found = importlib.import_module("fencepost" + module)
    assert found.__doc__ and undocumented(found) == []


RECIPES = ("locks.py", "app.py", "tasks.py")


@pytest.mark.parametrize("number", [n for n, block in enumerate(BLOCKS) if not block.startswith("# ")])
def test_a_snippet_runs(number: int, page: Any) -> None:
    page(BLOCKS[number])


def test_the_readme_runs(page: Any) -> None:
    code = (
        "import fencepost.aio\n"
        "alocks = await fencepost.aio.connect('redis://127.0.0.1:6379')\n"
        "order = 'order 42'\n"
    )
    for block in blocks((ROOT / "README.md").read_text()):
        page(code + block)


def listed(head: str) -> set[str]:
    """The names in the first column of a table of the page."""
    rows = PAGE.split(f"| {head} |")[1].split("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}


def test_the_page_lists_every_option() -> None:
    both = {
        **inspect.signature(fencepost.Locks.lock).parameters,
        **inspect.signature(fencepost.aio.Locks.lock).parameters,
    }
    assert listed("option") == both.keys() - {"self", "name"}


def test_the_page_lists_every_exception() -> None:
    offered = {name: getattr(fencepost, name) for name in fencepost.__all__}
    errors = {
        name for name, one in offered.items() if isinstance(one, type) and issubclass(one, fencepost.Error)
    }
    assert listed("exception") == errors - {"Error"}


def recipe(name: str) -> str:
    found: list[str] = [block for block in BLOCKS if block.startswith(f"# {name}")]
    assert len(found) == 1
    return found[0]


def test_every_recipe_is_tested() -> None:
    assert {block[2:].split()[0] for block in BLOCKS if block.startswith("# ")} == set(RECIPES)


def test_the_fastapi_recipe(page: Any, locks: fencepost.Locks) -> None:
    import httpx

    app = page(recipe("app.py"))["app"]

    async def use() -> None:
        transport = httpx.ASGITransport(app)
        async with (
            app.router.lifespan_context(app),
            httpx.AsyncClient(transport=transport, base_url="http://x") as http,
        ):
            first = await http.post("/orders/7/ship")
            assert first.status_code == 200 and first.json()["fence"] > 0
            with locks.lock("order:7"):
                assert (await http.post("/orders/7/ship")).status_code == 409
            assert (await http.post("/orders/7/ship")).json()["fence"] > first.json()["fence"]

    asyncio.run(use())


def test_the_celery_recipe(page: Any, locks: fencepost.Locks) -> None:
    import celery.exceptions

    names = page(recipe("tasks.py"))
    task = names["rebuild_index"]
    assert task.apply(args=["books"]).get() > 0
    with locks.lock("index:books"), pytest.raises(celery.exceptions.Retry):
        task.apply(args=["books"], throw=True, retries=0).get()
    names["locks"]().close()


def test_the_django_recipe(page: Any, redis_url: str, postgres_url: str, locks: fencepost.Locks) -> None:
    import django
    import psycopg
    from django.conf import settings

    from fencepost import StaleToken, fence

    with psycopg.connect(postgres_url) as connection:
        fence.install(connection)
        host, port = connection.info.host, connection.info.port
        database = {"ENGINE": "django.db.backends.postgresql", "NAME": connection.info.dbname}
        database |= {"HOST": host, "PORT": str(port), "USER": "postgres"}
    settings.configure(FENCEPOST_STORE=redis_url, DATABASES={"default": database})
    django.setup()
    names = page(recipe("locks.py"))
    names["close_account"](7)
    with psycopg.connect(postgres_url) as connection:
        with pytest.raises(StaleToken):
            fence.activate(connection, "account:7", 1)
    with django.db.connection.cursor() as cursor:
        for target in (django.db.connection, cursor):
            with pytest.raises(fencepost.Invalid, match="no transaction"):
                fence.activate(target, "account:7", 2**53 - 1)
            with django.db.transaction.atomic():
                fence.activate(target, "account:7", 2**53 - 1)
                django.db.transaction.set_rollback(True)
    names["locks"]().close()
    django.db.connections.close_all()
