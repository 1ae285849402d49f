"""What a job of ours on a cluster says: followed while it runs, or fetched, without the lines that Ray adds."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from typing import TYPE_CHECKING, cast

from sweeps.cluster import marked_output, private_ray
from sweeps.cluster.connection import first_line
from sweeps.cluster.job_traces import ENDED

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

LOOK_EVERY_S = 0.2  # at a job
SILENT_S = 30.0  # what is followed; then it is asked whether it is there
LOOKED_AT_EVERY = 10  # silences: has it said more than has come over the link?


def of_ours(log: str) -> str:
    """Return a job's log without what Ray adds, and without what we read there alone."""
    return marked_output.without_names(private_ray.OWN_LINES.sub("", log))


def follow(client: JobSubmissionClient, job: str) -> Iterator[str]:
    """Yield what a job says, line by line, up to a second late. It is fetched as it is said, however long that is
    followed, and once more at the end."""
    import aiohttp

    loop = asyncio.new_event_loop()
    tail = client.tail_job_logs(job)
    coming, rest, said = loop.create_task(_next(tail)), "", 0
    silences, is_behind = 0, False
    try:
        while True:
            if loop.run_until_complete(asyncio.wait({coming}, timeout=SILENT_S))[0]:
                whole, end, rest = (rest + coming.result()).rpartition("\n")
                for line in _split(whole + end):
                    yield line
                    said += 1
                coming = loop.create_task(_next(tail))
                silences, is_behind = 0, False
                continue
            if client.get_job_status(job) in ENDED:  # which has not come over the link
                break
            silences += 1
            if is_behind:  # still
                raise ConnectionError("nothing comes over the link any more")
            if silences % LOOKED_AT_EVERY == 0:
                is_behind = len(_split(client.get_job_logs(job))) > said + bool(rest)
    except StopAsyncIteration:  # a link that is cut ends like a log
        if client.get_job_status(job) not in ENDED:
            raise ConnectionError(f"the link was cut, and {job} goes on") from None
    except aiohttp.WSServerHandshakeError as error:
        raise ConnectionError(f"whatever stands between must let WebSockets pass (status {error.status})") from None
    except aiohttp.ClientError as error:
        raise ConnectionError(first_line(error)) from None
    finally:
        coming.cancel()  # one that was interrupted in the middle
        with contextlib.suppress(Exception, asyncio.CancelledError):
            loop.run_until_complete(coming)
        with contextlib.suppress(Exception):
            loop.run_until_complete(cast(AsyncGenerator[str], tail).aclose())
        loop.close()
    yield from _split(client.get_job_logs(job))[said:]  # what has not come, if the link was cut at the very end


def _split(log: str) -> list[str]:
    """Return its lines without what Ray adds, also a last one that has no end."""
    lines = log.split("\n")
    return [line for line in lines[:-1] if of_ours(f"{line}\n")] + [line for line in lines[-1:] if line]


async def _next(tail: AsyncIterator[str]) -> str:
    try:
        return await anext(tail)
    except RuntimeError:  # by which Ray tells some of the ends that a link can have; others are like a log's
        raise StopAsyncIteration from None


def lines(client: JobSubmissionClient, job: str) -> Iterator[str]:
    """Yield what a job says, as it says it, all of it fetched again each time: for one that is soon over."""
    said = 0
    while True:
        is_over = client.get_job_status(job) in ENDED
        log = of_ours(client.get_job_logs(job))
        end = log.rfind("\n") + 1
        yield from log[said:end].split("\n")[:-1]  # `splitlines` would split at more
        said = max(said, end)
        if is_over:
            yield from filter(None, [log[said:]])
            return
        time.sleep(LOOK_EVERY_S)


def last_words(client: JobSubmissionClient, job: str, log: str) -> str:
    """Return what a job said last; what Ray says of one that has said nothing."""
    last = next(reversed(of_ours(log).strip().split("\n")))
    if words := (marked_output.parsed(last) or ("", last))[1]:
        return words
    info = client.get_job_info(job)
    return first_line(info.message or info.status)
