"""A disk that loses what was not forced to it: the folder as it can look after the power was cut."""

from __future__ import annotations

import os
import random
import stat
from pathlib import Path

PAGE = 512


class Disk:
    """Watches `fsync`: what a file held and which names a folder held when they were last forced to the disk."""

    def __init__(self, root: Path) -> None:
        self.root, self._fsync = root, os.fsync
        self.contents: dict[int, bytes] = {}
        self.names: dict[Path, dict[str, int]] = {}
        self._open: list[int] = []  # files stay open, so that no inode is used twice

    def fsync(self, fd: int) -> None:
        self._fsync(fd)
        about = os.fstat(fd)
        if stat.S_ISDIR(about.st_mode):
            folder = Path(f"/proc/self/fd/{fd}").readlink()
            self.names[folder] = {path.name: path.stat().st_ino for path in folder.iterdir()}
            self._open += [os.open(path, os.O_RDONLY) for path in folder.iterdir()]
        else:
            self._open.append(os.dup(fd))
            self.contents[about.st_ino] = Path(f"/proc/self/fd/{fd}").read_bytes()

    def after_a_power_cut(self, target: Path, seed: int | None) -> None:
        """Write the folder that is left: only what was forced to the disk, or (with a seed) any
        mixture of that and what was written.
        """
        chance = random.Random(seed)
        files = {fd: os.fstat(fd).st_ino for fd in self._open if stat.S_ISREG(os.fstat(fd).st_mode)}
        now = {ino: Path(f"/proc/self/fd/{fd}").read_bytes() for fd, ino in files.items()}
        now |= {
            path.stat().st_ino: path.read_bytes() for path in self.root.rglob("*") if path.is_file()
        }
        self._folder(self.root, target, None if seed is None else chance, now)

    def _folder(
        self, folder: Path, target: Path, chance: random.Random | None, now: dict[int, bytes]
    ) -> None:
        target.mkdir(parents=True)
        names = self.names.get(folder, {})
        if chance is not None and folder.is_dir() and chance.random() < 0.5:
            names = {path.name: path.stat().st_ino for path in folder.iterdir()}
        for name, inode in names.items():
            if (folder / name).is_dir():
                self._folder(folder / name, target / name, chance, now)
            elif inode in now:
                (target / name).write_bytes(
                    self._left(self.contents.get(inode, b""), now[inode], chance)
                )

    def _left(self, old: bytes, new: bytes, chance: random.Random | None) -> bytes:
        if chance is None:
            return old
        left = bytearray()
        for at in range(0, len(new), PAGE):
            kept = new[at : at + PAGE] if chance.random() < 0.5 else old[at : at + PAGE]
            left += kept.ljust(len(new[at : at + PAGE]), b"\0")
        return bytes(left)
