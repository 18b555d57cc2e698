"""A real browser without a window, led through its own debugging protocol."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

START_LIMIT = 60.0  # s: it starts within one, but for a busy machine


class Page:
    """One page of the browser."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self.complaints: list[str] = []
        """What the browser wrote into its console: errors, and what a policy kept from happening."""
        self._socket = socket
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    async def go(self, url: str) -> None:
        """Go to an address, and wait for the document."""
        # A change behind "#" alone would load nothing.
        await self.ask("Page.navigate", url="about:blank")
        await self.ask("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression gives; promises are awaited."""
        told = await self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told["exceptionDetails"]
        return told["result"].get("value")

    async def until(self, expression: str, seconds: float = 40.0) -> Any:
        """Wait until an expression gives something true, and give that."""
        try:
            async with asyncio.timeout(seconds):
                while True:
                    with contextlib.suppress(AssertionError):  # the document may be changing
                        if value := await self.evaluate(expression):
                            return value
                    await asyncio.sleep(0.05)
        except TimeoutError:
            text = await self.evaluate("document.body.innerText")
            raise AssertionError(f"it did not happen: {expression}\n{text}\n{self.complaints}") from None

    async def screen(self, width: int, height: int, *, dark: bool = False) -> None:
        """Be so large, in light or dark."""
        await self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        await self.ask("Emulation.setEmulatedMedia", features=scheme)

    async def picture(self, path: Path, *, whole: bool = False) -> None:
        """Save what is seen."""
        told = await self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(told["data"]))

    async def key(self, name: str) -> None:
        """Press and release a key."""
        text = {"Enter": "\r", " ": " "}.get(name, "")
        code = {"Enter": 13, "Tab": 9, "Escape": 27, " ": 32}[name]
        more = {"text": text} if text else {}
        for kind in ("keyDown", "keyUp"):
            await self.ask("Input.dispatchKeyEvent", type=kind, key=name, windowsVirtualKeyCode=code, **more)

    async def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """One command of the protocol."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(START_LIMIT):
            told = await answer
        assert "error" not in told, (method, told)
        result: dict[str, Any] = told["result"]
        return result

    async def close(self) -> None:
        self._reading.cancel()
        await asyncio.wait((self._reading,))

    async def _read(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                waiting = self._waiting.pop(told["id"])
                if not waiting.done():  # nobody waits any more for what took too long
                    waiting.set_result(told)
            elif told["method"] == "Runtime.exceptionThrown":
                self.complaints.append(str(told["params"]["exceptionDetails"]))
            elif told["method"] == "Log.entryAdded" and told["params"]["entry"]["level"] == "error":
                entry = told["params"]["entry"]
                self.complaints.append(f"{entry['text']} {entry.get('url', '')}")


@asynccontextmanager
async def chromium(folder: Path) -> AsyncIterator[Page]:
    """Start a browser with one empty page; it ends with the block."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "no chromium: run scripts/system-packages.sh"
    profile = folder / "profile"
    process = await asyncio.create_subprocess_exec(
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--disable-extensions",
        "--no-first-run",
        "--remote-debugging-port=0",
        f"--user-data-dir={profile}",
        "about:blank",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        port = await _port(profile / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            url = await _page_url(session, port)
            async with session.ws_connect(url, max_msg_size=0) as socket:
                page = Page(socket)
                try:
                    for domain in ("Page", "Runtime", "Log"):
                        await page.ask(f"{domain}.enable")
                    yield page
                finally:
                    await page.close()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(10):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    async with asyncio.timeout(START_LIMIT):
        while True:
            assert process.returncode is None, f"the browser ended with {process.returncode}"
            # Two lines; a file that has one is still being written.
            if file.exists() and len(lines := file.read_text().split()) == 2:
                return int(lines[0])
            await asyncio.sleep(0.05)


async def _page_url(session: aiohttp.ClientSession, port: int) -> str:
    async with asyncio.timeout(START_LIMIT):
        while True:
            async with session.get(f"http://127.0.0.1:{port}/json") as answer:
                for each in await answer.json(content_type=None):
                    if each["type"] == "page":
                        url: str = each["webSocketDebuggerUrl"]
                        return url
            await asyncio.sleep(0.05)
