"""Environment variables that a trial sets, and those that its ranks were given. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from workers.contract import redact
from workers.contract.messages import UNREAD_VARIABLES, TrialConfig

# Horovod and NCCL read theirs when a ring is joined. Whoever else reads variables may do so while it is imported,
# which the fork server has long done: a trial that sets others has ranks that start from nothing.
READ_LATE = ("HOROVOD_", "NCCL_")
OF_THE_SEAT = ("RANK", "SIZE", "HOSTNAME", "RENDEZVOUS_ADDR", "RENDEZVOUS_PORT")


def environment(config: TrialConfig) -> dict[str, str]:
    """Return what is set for this trial's ranks before they start."""
    if config.framework == "torch":
        return dict(config.env)
    mib = 1 << 20
    return {
        "HOROVOD_FUSION_THRESHOLD": str(round(config.fusion_mib * mib)),
        "HOROVOD_CYCLE_TIME": f"{config.cycle_ms:g}",
        "HOROVOD_CACHE_CAPACITY": str(config.response_cache),
        **config.env,
    }


def needs_own_process(variables: Mapping[str, str]) -> bool:
    """Must a rank with these variables be started, not forked?"""
    return any(not name.startswith(READ_LATE) for name in variables)


def in_force(environ: Mapping[str, str], config: TrialConfig) -> dict[str, str]:
    """Return the variables that bear on how the ranks talk, whoever set them, and all that the trial asked for; of
    those that it takes from its nodes the names."""

    def bears(name: str) -> bool:
        if config.framework == "torch":
            return name.startswith(("NCCL_", "GLOO_", "TORCH_NCCL_"))
        return name.startswith("NCCL_") or (name.startswith("HOROVOD_") and not name.endswith(OF_THE_SEAT))

    return {
        name: redact.HIDDEN if name in config.env_from else redact.shown(name, value)
        for name, value in sorted(environ.items())
        if name not in UNREAD_VARIABLES and (name in config.env or name in config.env_from or bears(name))
    }
