# SPDX-License-Identifier: Apache-2.0
"""A server is started, watched, read and ended; nothing of it outlives whoever started it."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from vllm_radix.bench import server as server_module
from vllm_radix.bench.server import (
    PrefixCacheCounts,
    Program,
    Server,
    ServerError,
    parse_metrics,
    parse_samples,
)

# Stands for `vllm serve`: answers /health and /metrics, with a child that ignores all
# signals but one, as a stuck engine process would. Prints both process ids.
FAKE = """
import http.server, os, subprocess, sys
child = subprocess.Popen(["sh", "-c", "trap '' INT TERM; while :; do sleep 600; done"])
print(os.getpid(), child.pid, flush=True)
TEXT = b'''# HELP vllm:prefix_cache_queries_total Tokens looked up.
vllm:prefix_cache_queries_total{engine="0",model_name="m"} 300.0
vllm:prefix_cache_queries_total{engine="1",model_name="m"} 100.0
vllm:prefix_cache_hits_total{engine="0",model_name="m"} 1e+02
'''
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(TEXT if self.path == "/metrics" else b"")
address = sys.argv[sys.argv.index("--host") + 1], int(sys.argv[sys.argv.index("--port") + 1])
http.server.HTTPServer(address, Handler).serve_forever()
"""


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def processes(log: Path) -> list[int]:
    """The process ids that the fake server printed first."""
    return [int(word) for word in log.read_text().splitlines()[0].split()]


def is_running(pid: int) -> bool:
    status = Path(f"/proc/{pid}/stat")
    # A killed process whose new parent has not collected it yet is a zombie, state Z.
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def wait_until_gone(pids: list[int]) -> None:
    wait_until(lambda: not any(map(is_running, pids)))


def test_server_runs_while_the_block_lasts(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "server.log"
    with Server(python(FAKE), log) as server:
        server.wait_until_ready()
        assert server.prefix_cache_counts() == PrefixCacheCounts(queries=400, hits=100)
        pids = processes(log)
        assert all(map(is_running, pids))
    wait_until_gone(pids)
    with pytest.raises(ServerError, match="was not started"):
        server.metrics()


def test_two_servers_get_ports_of_their_own(tmp_path: Path) -> None:
    with Server(python(FAKE), tmp_path / "a") as a, Server(python(FAKE), tmp_path / "b") as b:
        a.wait_until_ready()
        b.wait_until_ready()
        assert processes(a.log) != processes(b.log)
        assert a.url != b.url


def test_an_error_in_the_block_ends_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with pytest.raises(KeyboardInterrupt), Server(python(FAKE), log) as server:
        server.wait_until_ready()
        raise KeyboardInterrupt
    wait_until_gone(processes(log))


def test_a_server_that_does_not_start_tells_why(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "raise ValueError('no such model')"
    with pytest.raises(ServerError) as caught, Server(python(code), log) as server:
        server.wait_until_ready()
    assert str(caught.value).splitlines() == [
        *log.read_text().splitlines(),
        f"The server ended by itself with exit code 1, see {log}."
        " Its log says: ValueError: no such model",
    ]


def test_a_server_that_names_no_error_shows_the_end_of_its_log(tmp_path: Path) -> None:
    log = tmp_path / "log"
    code = "print(*range(40), 'error: no', sep='\\n'); raise SystemExit(2)"
    with pytest.raises(ServerError) as caught, Server(python(code), log) as server:
        server.wait_until_ready()
    assert str(caught.value).splitlines() == [
        *map(str, range(31, 40)),
        "error: no",
        f"The server ended by itself with exit code 2, see {log}.",
    ]


def test_what_a_model_lacks_is_told_in_the_same_line(tmp_path: Path) -> None:
    lines = (
        "(APIServer pid=7) pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "(APIServer pid=7)   Value error, The model has 512 positions. [type=value_error, input_",
        "(APIServer pid=7)     For further information visit https://errors.pydantic.dev",
    )
    code = f"print(*{lines!r}, sep='\\n'); raise SystemExit(1)"
    cause = (
        r"Its log says: pydantic_core\.ValidationError: 1 validation error for ModelConfig Value "
        r"error, The model has 512 positions\.$"
    )
    with (
        pytest.raises(ServerError, match=cause),
        Server(python(code), tmp_path / "log") as server,
    ):
        server.wait_until_ready()


def test_a_killed_server_shows_the_end_of_its_log(tmp_path: Path) -> None:
    code = (
        "import os; print('ValueError: of long ago', 'working', sep='\\n', flush=True);"
        "os.kill(os.getpid(), 9)"
    )
    with (
        pytest.raises(ServerError, match=r"^ValueError: of long ago\nworking\nThe server ended by"),
        Server(python(code), tmp_path / "log") as server,
    ):
        server.wait_until_ready()


def test_the_cause_is_the_last_error_that_does_not_point_elsewhere(tmp_path: Path) -> None:
    code = (
        "print('(Engine pid=7) ERROR [core.py:1] pkg.mod.SomeError: the cause');"
        "raise RuntimeError('Engine core initialization failed. See root cause above.')"
    )
    cause = r"Its log says: pkg\.mod\.SomeError: the cause$"
    with (
        pytest.raises(ServerError, match=cause),
        Server(python(code), tmp_path / "log") as server,
    ):
        server.wait_until_ready()


def test_a_command_that_does_not_exist(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="no-such-command"),
        Server(["no-such-command"], tmp_path / "log"),
    ):
        pytest.fail("it started")


def test_a_server_that_hears_nothing_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "_STOP_TIMEOUT", 1)
    log = tmp_path / "log"
    code = "trap '' INT TERM; echo $$; while :; do sleep 600; done"
    with Server(["sh", "-c", code], log) as server:
        with pytest.raises(ServerError, match="was not ready after 1 s"):
            server.wait_until_ready(timeout=1)
        pids = processes(log)
        assert all(map(is_running, pids))
    wait_until_gone(pids)


def test_a_server_that_dies_is_noticed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Server(python(FAKE), log) as server:
        server.wait_until_ready()
        pid, _ = processes(log)
        os.kill(pid, signal.SIGKILL)
        wait_until_gone([pid])
        with pytest.raises(ServerError, match="exit code -9"):
            server.metrics()
    wait_until_gone(processes(log))


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with (
            pytest.raises(ServerError, match=f"^Port {port} cannot be used"),
            Server(python(FAKE), tmp_path / "log", port=port),
        ):
            pytest.fail("it started")
    with Server(python(FAKE), tmp_path / "log", port=port) as server:
        server.wait_until_ready()
        assert server.url == f"http://127.0.0.1:{port}"
    # Its closed connections linger; the next server may listen there all the same.
    with Server(python(FAKE), tmp_path / "log", port=port) as server:
        server.wait_until_ready()


def test_a_program_ends(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with Program(python("print('done')"), log) as program:
        wait_until(program.has_ended)
    assert log.read_text() == "done\n"
    with (
        pytest.raises(ServerError, match="The program ended with exit code 3, see"),
        Program(python("raise SystemExit(3)"), log) as program,
    ):
        wait_until(program.has_ended)


def test_a_server_that_is_dying_is_waited_for(tmp_path: Path) -> None:
    code = "import time; time.sleep(1)"
    with Server(python(code), tmp_path / "log") as server:
        server.check()
        with pytest.raises(ServerError, match="exit code 0"):
            server.check(grace=30)


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_server_outlives_its_program(tmp_path: Path, signal_number: signal.Signals) -> None:
    log = tmp_path / "log"
    program = f"""
import sys, time
from pathlib import Path
from vllm_radix.bench import server
server._STOP_TIMEOUT = 1
with server.Server([sys.executable, "-c", {FAKE!r}], Path({str(log)!r})) as running:
    running.wait_until_ready()
    print("ready", flush=True)
    time.sleep(600)
"""
    process = subprocess.Popen(
        python(program), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert process.stdout is not None
    with process:
        assert process.stdout.readline() == "ready\n"
        pids = processes(log)
        process.send_signal(signal_number)
        process.wait(30)
    wait_until_gone(pids)


def test_metrics_are_summed_over_their_labels() -> None:
    text = '# TYPE a gauge\na{x="}, {"} 1.5\na{x="2"} 2\nb:c_total 3e2 1700000000\n'
    assert parse_metrics(text) == {"a": 3.5, "b:c_total": 300.0}
    assert parse_samples(text) == {"a": [1.5, 2.0], "b:c_total": [300.0]}


def test_counts_of_an_interval() -> None:
    counts = PrefixCacheCounts(queries=500, hits=90) - PrefixCacheCounts(queries=100, hits=10)
    assert counts == PrefixCacheCounts(queries=400, hits=80)
    assert counts.hit_rate == pytest.approx(0.2)
    assert PrefixCacheCounts(0, 0).hit_rate == 0.0
