"""What a job of ours leaves on a cluster's head once it has ended: a record in Ray's table of jobs, and its log. Ray
itself deletes neither before the next `ray up`.

Whoever asks deletes the record of a question with its answer, unless they have fallen silent. Its log they can't, and
they still read it. So what is old goes with what comes next: records with the next submission, logs with the next
question. What a sweep's driver said lies in the sweep's folder too, and goes with `sweep gc`.
"""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

DAY_S = 86_400.0
KEPT_S = {
    "ask": DAY_S,
    "sweep": 90 * DAY_S,
}  # by the first word of a job's name, from its end; its log, from its last word
ENDED = ("SUCCEEDED", "FAILED", "STOPPED")


def forget(client: JobSubmissionClient) -> None:
    """Delete the records that are old, as far as the cluster answers."""
    with contextlib.suppress(RuntimeError, OSError):
        for one in client.list_jobs():
            name = one.submission_id or ""
            if one.status in ENDED and one.end_time and _is_old(name, one.end_time / 1000):
                client.delete_job(name)


def delete_logs(job: str) -> None:
    """On the head, as the job of this name: of all that Ray keeps beside our own log, delete what is old."""
    own = Path(os.readlink("/proc/self/fd/1"))
    if not job or job not in own.name:
        return
    before, _, after = own.name.partition(job)
    for log in own.parent.glob(f"{before}*{after}"):
        with contextlib.suppress(OSError):  # it has gone since
            if _is_old(log.name.removeprefix(before).removesuffix(after), log.stat().st_mtime):
                log.unlink()


def _is_old(job: str, since: float) -> bool:
    kind, dash, _ = job.partition("-")
    return bool(dash) and kind in KEPT_S and time.time() - since > KEPT_S[kind]
