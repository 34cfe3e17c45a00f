"""Many same-key triggers at once, from one process: prints "ready", waits for a line, then prints each answer."""

from __future__ import annotations

import http.client
import json
import sys
import threading

port, key, count = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
body = json.dumps({"payload": {"a": 1}, "options": {"idempotencyKey": "k"}})
headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
start, printing = threading.Event(), threading.Lock()


def one(times: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    start.wait()
    for _ in range(times):
        connection.request("POST", "/api/v1/tasks/storm/trigger", body, headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        with printing:
            print(text if answer.status == 200 else json.dumps({"id": f"{answer.status} {text}", "isCached": True}))
    connection.close()


threads = min(count, 50)
shares = [count // threads + (number < count % threads) for number in range(threads)]
workers = [threading.Thread(target=one, args=(share,)) for share in shares]
for worker in workers:
    worker.start()
print("ready", flush=True)
sys.stdin.readline()
start.set()
for worker in workers:
    worker.join()
