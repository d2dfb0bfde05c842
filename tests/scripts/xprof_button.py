"""Presses CAPTURE PROFILE on a real XProf page in a headless Chromium: xprof_button.py PAGE ADDRESS SCREENSHOT

Prints what the page says of the capture. The screenshot is of the page after that.
"""

import asyncio
import base64
import json
import subprocess
import sys
import tempfile

import aiohttp

PAGE, ADDRESS, SCREENSHOT = sys.argv[1:4]
FLAGS = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0",
         "--window-size=1280,900"]
BUTTON = "document.querySelector('capture-profile button')"
FILL = """(() => {
    const dialog = document.querySelector('capture-profile-dialog');
    const fill = (input, text) => {
        Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(input, text);
        input.dispatchEvent(new Event('input', {bubbles: true}));
    };
    fill(dialog.querySelector('input[placeholder^="localhost"]'), ADDRESS);
    fill(dialog.querySelector('input[type=number]'), '500');
})()"""
CAPTURE = "document.querySelector('capture-profile-dialog mat-dialog-actions button')"
SAID = "(document.querySelector('simple-snack-bar, mat-snack-bar-container') || {}).innerText || ''"


class Tab:
    def __init__(self, socket):
        self.socket, self.number, self.session = socket, 0, None

    async def ask(self, method, **params):
        self.number += 1
        message = {"id": self.number, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        await self.socket.send_str(json.dumps(message))
        while True:
            answer = json.loads((await self.socket.receive()).data)
            if answer.get("id") == self.number:
                assert "error" not in answer, answer
                return answer["result"]

    async def value(self, script):
        answer = await self.ask("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script):
        while not (found := await self.value(script)):
            await asyncio.sleep(0.1)
        return found


async def press(devtools):
    async with aiohttp.ClientSession() as client, client.ws_connect(devtools, max_msg_size=0) as socket:
        tab = Tab(socket)
        target = (await tab.ask("Target.createTarget", url=PAGE))["targetId"]
        tab.session = (await tab.ask("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        await tab.until(f"!!{BUTTON}")
        await tab.value(f"{BUTTON}.click()")
        await tab.until("!!document.querySelector('capture-profile-dialog input')")
        await tab.value(FILL.replace("ADDRESS", json.dumps(ADDRESS)))
        await tab.until(f"!{CAPTURE}.disabled")
        await tab.value(f"{CAPTURE}.click()")
        print(await tab.until(SAID), flush=True)
        image = await tab.ask("Page.captureScreenshot", format="png")
        with open(SCREENSHOT, "wb") as file:
            file.write(base64.b64decode(image["data"]))


with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
    command = ["chromium", *FLAGS, f"--user-data-dir={profile}"]
    browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        line = next(line for line in browser.stderr if line.startswith("DevTools listening on "))
        asyncio.run(asyncio.wait_for(press(line.split()[-1]), 100))
    finally:
        browser.kill()
        browser.wait()
