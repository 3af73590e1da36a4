# SPDX-License-Identifier: Apache-2.0
"""Stands for the command ``vllm``, without a model: ``serve`` and ``bench serve``.

``serve`` answers every prompt with tokens that follow from it, as a real server's API does.
Options of its own, in place of a model's flags:

--answer-of NAME   answer to prompts as the server NAME would, so that two differ
--die-after N      die in the Nth request
--hang-up-after N  answer no request after the Nth
--context N        refuse prompts of more than N characters
--slow             take a tenth of a second for each token
--no-reset         know no /reset_prefix_cache

It "encodes" every image of a prompt, and says so if it is asked to log its steps.
"""

import argparse
import hashlib
import json
import math
import os
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

WORDS = ("the", "a", "lamp", "rope", "key", "was", "is", "brought", "home", "and", "never", "noon")

options = argparse.Namespace()
counts = {"requests": 0, "queries": 0, "hits": 0}
lock = threading.Lock()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self.reply(200, {"data": [{"id": "fake"}]})
        elif self.path == "/version":
            self.reply(200, {"version": "1.2.3"})
        elif self.path == "/metrics":
            cached = options.enable_prefix_caching
            lines = (
                f"vllm:prefix_cache_queries_total {counts['queries'] * cached}\n"
                f"vllm:prefix_cache_hits_total {counts['hits'] * cached}\n"
                "vllm:num_preemptions_total 1\nvllm:num_requests_running 2\n"
                'vllm:kv_cache_usage_perc{engine="0"} 0.25\n'
                'vllm:kv_cache_usage_perc{engine="1"} 0.75\n'
            )
            self.reply(200, lines)
        else:
            self.reply(200, "")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or "{}")
        if self.path == "/reset_prefix_cache":
            self.reply(404 if options.no_reset else 200, {"success": True})
            return
        is_chat = self.path.endswith("chat/completions")
        prompt = json.dumps(body["messages"]) if is_chat else body["prompt"]
        with lock:
            counts["requests"] += 1
            print("session", body.get("session_id"), flush=True)
            log_step(prompt.count('"image_url": {'))
            counts["queries"] += len(prompt)
            counts["hits"] += len(prompt) // 2
            if counts["requests"] == options.die_after:
                print("EngineDeadError: the engine is dead", flush=True)
                os._exit(7)
            if counts["requests"] > options.hang_up_after:
                self.close_connection = True
                return
        if len(prompt) > options.context:
            message = f"This model's maximum context length is {options.context} tokens."
            if len(prompt) % 2:
                message = "max_tokens must be at least 1, got 0."
            self.reply(400, {"error": {"message": message, "code": 400}})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        for position in range(body["max_tokens"]):
            for index in range(body["n"]):
                self.send(token(prompt, body, index, position, is_chat))
        usage = {
            "prompt_tokens": len(prompt),
            "completion_tokens": body["max_tokens"] * body["n"],
            "total_tokens": 0,
            "prompt_tokens_details": {"cached_tokens": len(prompt) // 2},
        }
        self.send({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def send(self, chunk: dict[str, Any]) -> None:
        shared = {"id": "1", "object": "chunk", "created": 0, "model": "fake"}
        self.wfile.write(f"data: {json.dumps(shared | chunk)}\n\n".encode())
        self.wfile.flush()
        time.sleep(0.1 if options.slow else 0.001)

    def reply(self, status: int, content: object) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def log_step(num_images: int) -> None:
    """As vLLM logs it, at the level INFO."""
    if options.enable_logging_iteration_details and os.environ["VLLM_LOGGING_LEVEL"] == "INFO":
        encoded = f", encoder inputs: {num_images}, encoder output embeddings: 80"
        print(
            "(APIServer pid=1) INFO 01-02 03:04:05 [loggers.py:199] Engine 000: Iteration(25): 1 "
            f"context requests, CPU KV cache usage: 8.4%{encoded if num_images else ''}",
            flush=True,
        )


def token(
    prompt: str, body: dict[str, Any], index: int, position: int, is_chat: bool
) -> dict[str, Any]:
    """A chunk with one token. Of another server, every fourth prompt's third token is another."""
    digest = hashlib.sha256(f"{prompt} {body.get('seed')} {index} {position}".encode()).digest()
    number, second = digest[0] % len(WORDS), digest[1] % len(WORDS)
    second = (number + 1) % len(WORDS) if second == number else second
    if options.answer_of and position == 2 and hashlib.sha256(prompt.encode()).digest()[0] % 4 == 0:
        number, second = second, number
    word, name, other = f" {WORDS[number]}", f"token_id:{number}", f"token_id:{second}"
    likely, less = math.log(0.5), math.log(0.4)
    choice: dict[str, Any] = {"index": index, "finish_reason": None, "token_ids": [number]}
    if is_chat:
        choice["delta"] = {"role": "assistant", "content": word}
        top = [{"token": name, "logprob": likely}, {"token": other, "logprob": less}]
        entry = {"token": name, "logprob": likely, "top_logprobs": top}
        choice["logprobs"] = {"content": [entry]}
    else:
        choice["text"] = word
        choice["logprobs"] = {
            "tokens": [name],
            "token_logprobs": [likely],
            "top_logprobs": [{name: likely, other: less}],
        }
    return {"choices": [choice]}


def serve(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--host")
    parser.add_argument("--port", type=int)
    parser.add_argument("--answer-of")
    parser.add_argument("--die-after", type=int, default=0)
    parser.add_argument("--hang-up-after", type=int, default=10**9)
    parser.add_argument("--context", type=int, default=10**9)
    parser.add_argument("--slow", action="store_true")
    parser.add_argument("--no-reset", action="store_true")
    parser.add_argument(
        "--enable-logging-iteration-details", action=argparse.BooleanOptionalAction, default=False
    )
    parser.add_argument(
        "--enable-prefix-caching", action=argparse.BooleanOptionalAction, default=True
    )
    parser.parse_known_args(arguments, options)
    # What it does before anybody asks is nobody's.
    log_step(99)
    # As an engine that hears no signal but one.
    subprocess.Popen(["sh", "-c", "trap '' INT TERM; while :; do sleep 600; done"])
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


def bench(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--result-dir", type=Path)
    parser.add_argument("--result-filename")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--num-prompts", type=int)
    parser.add_argument("--failing", action="store_true")
    given, _ = parser.parse_known_args(arguments)
    numbers = range(given.num_prompts)
    result = {
        "duration": 2.0,
        "input_lens": [100 + number for number in numbers],
        "output_lens": [3 for _ in numbers],
        "start_times": [50.0 + number for number in numbers],
        "ttfts": [0.5 for _ in numbers],
        "itls": [[0.1, 0.3] for _ in numbers],
        "generated_texts": [f"answer {given.seed} {number}" for number in numbers],
        "errors": ["Traceback\nValueError: no" if given.failing else "" for _ in numbers],
        "something_else": {},
    }
    time.sleep(1)
    (given.result_dir / given.result_filename).write_text(json.dumps(result))


if __name__ == "__main__":
    if sys.argv[1] == "serve":
        serve(sys.argv[2:])
    else:
        bench(sys.argv[3:])
