"""Checkouts of git that tests make."""

import subprocess


def git(where, *words):
    """What git prints in the folder ``where``, as somebody who may commit."""
    identity = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", *identity, "-C", str(where), *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def commit_all(where, message):
    """Commit all files of the checkout ``where``; returns the hash."""
    git(where, "add", "-A")
    git(where, "commit", "-q", "-m", message)
    return git(where, "rev-parse", "HEAD")
