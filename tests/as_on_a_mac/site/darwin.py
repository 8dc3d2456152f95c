"""What Pippin's own modules find of the system on a Mac, as far as that can be had on Linux.

Each module of Pippin that is imported after `begin` is given, where it imports one of `LACKS`, a view of that module
without what macOS lacks, and `sys.platform` and `platform` say where it is. Libraries and Python's own modules keep the
real ones: they are for this system.
"""

import builtins
import importlib.abc
import importlib.machinery
import os
import sys
from functools import partial
from types import ModuleType, SimpleNamespace
from typing import Any, Final

CHOSEN: Final = "PIPPIN_TEST_MAC"
"""The variable that tells a process its Mac (`mac.py`)."""

NOT_INSTALLED: Final = ("pippin_kernels", "mkl", "intel_openmp", "ngsolve_openblas", "cmeel")
"""Packages that no Mac has: kernels are compiled for CPUs, and the others are for Linux alone."""

LACKS: Final = {
    "os": "sched_setaffinity sched_getaffinity sched_setscheduler sched_setparam SCHED_BATCH SCHED_IDLE posix_fadvise "
    "posix_fallocate pipe2 fdatasync eventfd memfd_create getrandom copy_file_range splice pidfd_open getxattr "
    "setxattr listxattr removexattr O_TMPFILE O_PATH O_DIRECT O_NOATIME O_LARGEFILE getresuid setresuid waitid",
    "select": "epoll EPOLLIN EPOLLOUT",
    "signal": "SIGCLD SIGPOLL SIGPWR SIGRTMAX SIGRTMIN SIGSTKFLT sigtimedwait sigwaitinfo",
    "socket": "TCP_KEEPIDLE TCP_USER_TIMEOUT TCP_DEFER_ACCEPT TCP_QUICKACK TCP_CORK TCP_CONGESTION SOCK_CLOEXEC "
    "SOCK_NONBLOCK SO_PEERCRED SO_DOMAIN SO_PROTOCOL AF_NETLINK AF_PACKET AF_ALG MSG_NOSIGNAL MSG_MORE MSG_ERRQUEUE "
    "MSG_CMSG_CLOEXEC",
    "time": "CLOCK_BOOTTIME CLOCK_TAI pthread_getcpuclockid",
    "resource": "prlimit RUSAGE_THREAD RLIMIT_OFILE RLIMIT_NICE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING",
    "mmap": "MAP_POPULATE MADV_HUGEPAGE MADV_NOHUGEPAGE MADV_DONTFORK MADV_DONTDUMP MADV_REMOVE",
    "fcntl": "F_GETPIPE_SZ F_SETPIPE_SZ F_ADD_SEALS F_SETLEASE F_NOTIFY F_OFD_SETLK",
    "errno": "EBADFD EREMOTEIO ECOMM ECHRNG EUCLEAN EHWPOISON",
    "psutil": "RLIMIT_AS RLIMIT_DATA IOPRIO_CLASS_IDLE PROCFS_PATH sensors_temperatures",
    "sys": "",
    "platform": "freedesktop_os_release libc_ver",
}
"""By module, in the words of Python's and psutil's documentation ("Availability")."""

PROCESS_LACKS: Final = ("memory_maps", "cpu_affinity", "io_counters", "ionice", "rlimit", "cpu_num")
"""Methods of `psutil.Process` for other systems."""

UNSHIMMED: Final = ("pippin.engines.cpu.blas",)
"""What makes this machine's CPU multiply quickly stands for the Mac's GPU."""


MOST_FILES: Final = 24_576
"""`kern.maxfilesperproc`, beyond which `setrlimit` fails, whatever `getrlimit` says."""
F_GETPATH: Final = 50

Told = dict[str, dict[str, Any]]


class View(ModuleType):
    """A module without some of its names; all else is read from it, and set in it."""

    def __init__(self, own: ModuleType, without: frozenset[str], instead: dict[str, Any]) -> None:
        super().__init__(own.__name__, own.__doc__)
        vars(self).update(_own=own, _without=without, **instead)

    def __getattr__(self, name: str) -> Any:
        if name in vars(self)["_without"]:
            raise AttributeError(f"macOS has no {self.__name__}.{name}")
        return getattr(vars(self)["_own"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_own"], name, value)

    def __dir__(self) -> list[str]:
        return [each for each in dir(vars(self)["_own"]) if each not in vars(self)["_without"]]


def _found_on_a_mac(own: ModuleType) -> dict[str, Any]:
    """What a module says otherwise there."""
    match own.__name__:
        case "sys":
            return {"platform": "darwin"}
        case "platform":
            told = {"system": "Darwin", "machine": "arm64", "platform": "macOS-15.5-arm64-arm-64bit"}
            return {name: lambda *_, said=said: said for name, said in told.items()}
        case "psutil":
            return _psutil_on_a_mac(own)
        case "resource":
            return {"setrlimit": partial(_set_limit, own.setrlimit, own.RLIMIT_NOFILE)}
        case "fcntl":
            return {"F_GETPATH": F_GETPATH, "fcntl": partial(_control, own.fcntl)}
    return {}


def _set_limit(own: Any, files: int, which: int, limits: tuple[int, int]) -> None:
    if which == files and limits[0] > MOST_FILES:
        raise ValueError("current limit exceeds maximum limit")
    own(which, limits)


def _control(own: Any, file: Any, command: int, argument: Any = 0) -> Any:
    if command != F_GETPATH:
        return own(file, command, argument)
    return os.fsencode(os.readlink(f"/proc/self/fd/{file}")).ljust(len(argument), b"\0")


def _psutil_on_a_mac(own: ModuleType) -> dict[str, Any]:
    def virtual_memory() -> SimpleNamespace:
        found = own.virtual_memory()
        names = ("total", "available", "percent", "used", "free", "active", "inactive")
        return SimpleNamespace(wired=0, **{name: getattr(found, name) for name in names})

    def memory_info(process: Any) -> SimpleNamespace:
        found = own.Process.memory_info(process)
        return SimpleNamespace(rss=found.rss, vms=found.vms, pfaults=0, pageins=0)

    lacking = dict.fromkeys(PROCESS_LACKS, property(_absent))
    process = type("Process", (own.Process,), {"memory_info": memory_info, **lacking})
    return {"virtual_memory": virtual_memory, "Process": process, "LINUX": False, "MACOS": True}


def _absent(_: Any) -> None:
    raise AttributeError("macOS has no such method of psutil.Process")


class Finder(importlib.abc.MetaPathFinder):
    """Gives Pippin's modules an `import` that finds the views."""

    def __init__(self, told: Told) -> None:
        self._told = told
        self._views: dict[str, View] = {}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        if not name.startswith("pippin.") or name in UNSHIMMED:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            vars(module)["__builtins__"] = self._builtins
            run(module)
            vars(module).update(self._told.get(name, {}))

        vars(spec.loader)["exec_module"] = exec_module
        return spec

    def _import(self, name: str, *how: Any, **named: Any) -> Any:
        found = builtins.__import__(name, *how, **named)
        if name not in LACKS:
            return found
        if name not in self._views:
            self._views[name] = View(found, frozenset(LACKS[name].split()), _found_on_a_mac(found))
        return self._views[name]


def _keep_from_proc(event: str, arguments: tuple[Any, ...]) -> None:
    """Let no module of Pippin open what Linux alone has; libraries on this system may."""
    if event != "open" or not str(arguments[0]).startswith(("/proc/", "/sys/")):
        return
    frame = sys._getframe(1)
    while (
        frame.f_back is not None
        and frame.f_globals.get("__name__", "").partition(".")[0] in sys.stdlib_module_names
    ):
        frame = frame.f_back
    name = frame.f_globals.get("__name__", "")
    if name.startswith("pippin.") and name not in UNSHIMMED:
        raise FileNotFoundError(2, "macOS has no such file", arguments[0])


def begin(told: Told | None = None) -> None:
    """From here on modules of Pippin are imported as on a Mac. None may have been before. `told` replaces what is in
    some of them, by their names."""
    assert not any(each.startswith("pippin.") for each in sys.modules)
    sys.modules.update(dict.fromkeys(NOT_INSTALLED))  # type: ignore[arg-type] # None: an import fails
    sys.meta_path.insert(0, Finder(told or {}))
    sys.addaudithook(_keep_from_proc)
