#include "check.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include <sched.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/core/clock.hpp>
#include "print.hpp"
#include "visible.hpp"

namespace {

std::string first_line_of(const std::string& file) {
  std::string line;
  std::getline(std::ifstream(file), line);
  return line;
}

std::string in_ulimit(rlim_t value) { return value == RLIM_INFINITY ? "unlimited" : std::to_string(value); }

// A rank has some 20 descriptors of its own, one or two for each other rank, and those of its files.
machine_check check_files() {
  constexpr rlim_t wanted = 1024;
  rlimit limit{};
  ::getrlimit(RLIMIT_NOFILE, &limit);
  machine_check result{"open files", in_ulimit(limit.rlim_cur) + " (" + in_ulimit(limit.rlim_max) + " at most)", ""};
  if (limit.rlim_cur < wanted) {
    result.mend = limit.rlim_max >= wanted
                      ? "ulimit -n " + std::to_string(wanted)
                      : "echo '* - nofile 65536' > /etc/security/limits.d/muster.conf   # as root; "
                        "then log in again";
  }
  return result;
}

machine_check check_processes() {
  constexpr rlim_t wanted = 256;  // some threads for each rank
  rlimit limit{};
  ::getrlimit(RLIMIT_NPROC, &limit);
  machine_check result{"processes", in_ulimit(limit.rlim_cur), ""};
  if (limit.rlim_cur < wanted && ::geteuid() != 0) result.mend = "ulimit -u 4096";  // root has no such limit
  return result;
}

machine_check check_address_space() {
  rlimit limit{};
  ::getrlimit(RLIMIT_AS, &limit);
  machine_check result{"address space", in_ulimit(limit.rlim_cur), ""};
  if (limit.rlim_cur != RLIM_INFINITY) result.mend = "ulimit -v unlimited";  // each rank maps the memory of the others
  return result;
}

// A quota on the time of cores: the file that has it, and the number of cores.
struct cpu_quota {
  std::string file;
  double cores = 0;
};

// Reads the quota of one folder: "cpu.max" of cgroups version 2, and the two files of version 1. 0 cores: no quota.
cpu_quota read_quota(const std::string& folder) {
  for (const char* const name : {"/cpu.max", "/cpu.cfs_quota_us"}) {
    std::istringstream words(first_line_of(folder + name) + ' ' + first_line_of(folder + "/cpu.cfs_period_us"));
    double quota = 0;
    double period = 0;
    if (words >> quota >> period && quota > 0 && period > 0) return {folder + name, quota / period};  // "max" is none
  }
  return {};
}

// Returns the smallest quota of this process's cgroup and the cgroups around it.
cpu_quota find_quota() {
  cpu_quota found;
  std::ifstream lines("/proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // "4:cpu,cpuacct:/path" of version 1, "0::/path" of version 2
    const auto name = line.find(':') + 1;
    const auto path = line.find(':', name) + 1;
    const auto controllers = line.substr(name, path - 1 - name);
    if (!controllers.empty() && (',' + controllers + ',').find(",cpu,") == std::string::npos) continue;
    const auto root = "/sys/fs/cgroup" + (controllers.empty() ? "" : '/' + controllers);
    line.erase(line.find_last_not_of('/') + 1);
    for (auto folder = root + (path < line.size() ? line.substr(path) : ""); folder.size() >= root.size();
         folder.resize(folder.find_last_of('/'))) {
      const auto quota = read_quota(folder);
      if (quota.cores > 0 && (found.cores <= 0 || quota.cores < found.cores)) found = quota;
    }
  }
  return found;
}

// A quota stops every rank of the cgroup for the rest of a period of 0.1 s, and all ranks wait for the stopped rank.
machine_check check_cores() {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  ::sched_getaffinity(0, sizeof usable, &usable);
  const int cores = CPU_COUNT(&usable);
  machine_check result{"cores", std::to_string(cores), ""};
  const auto quota = find_quota();
  if (quota.cores > 0 && quota.cores < cores) {
    std::ostringstream allowed;
    allowed << quota.cores;
    result.found += ", of which the cgroup allows the time of " + allowed.str() + " (" + quota.file + ")";
    result.mend = std::string("echo ") + (quota.file.ends_with("max") ? "max" : "-1") + " > " + quota.file +
                  "   # as root; in a container: --cpus " + std::to_string(cores);
  }
  return result;
}

// muster's own shared memory is not there. Open MPI's and NCCL's is: a few MB for each rank.
machine_check check_shared_memory() {
  constexpr double wanted = 64 << 20;
  struct statvfs disk {};
  if (::statvfs("/dev/shm", &disk) != 0 || ::access("/dev/shm", W_OK) != 0)
    return {"/dev/shm", std::strerror(errno), "mount -t tmpfs -o mode=1777 tmpfs /dev/shm   # as root"};
  const double free = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  machine_check result{"/dev/shm", std::to_string(static_cast<long long>(free / 1e6)) + " MB free", ""};
  if (free < wanted)
    result.mend =
        "mount -o remount,size=1G /dev/shm   # as root, after old files are removed; in a container: --shm-size 1g";
  return result;
}

// Open MPI copies between ranks of one host by process_vm_readv if the system allows this to processes that are no
// ancestors.
machine_check check_tracing() {
  static const int secret = 4711;
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  if (child == 0) {
    int copy = 0;
    const iovec here{&copy, sizeof copy};
    const iovec there{const_cast<int*>(&secret), sizeof secret};
    ::_exit(::process_vm_readv(parent, &here, 1, &there, 1, 0) == static_cast<ssize_t>(sizeof copy) ? 0 : errno);
  }
  int status = 0;
  if (child < 0 || ::waitpid(child, &status, 0) != child || !WIFEXITED(status))
    return {"copies", "not tried: no process could be started", "ulimit -u 4096"};
  if (WEXITSTATUS(status) == 0) return {"copies", "ranks of one host may read each other's memory", ""};
  const auto scope = first_line_of("/proc/sys/kernel/yama/ptrace_scope");
  const bool by_scope = !scope.empty() && scope != "0";
  return {"copies",
          std::string("a rank may not read another's memory (") + std::strerror(WEXITSTATUS(status)) +
              (by_scope ? ", ptrace_scope is " + scope : "") + "); over MPI large messages are copied twice",
          by_scope ? "sysctl kernel.yama.ptrace_scope=0   # as root"
                   : "docker run --cap-add SYS_PTRACE ...   # for a container"};
}

// Runs a command for at most 20 seconds; returns its status and its lines.
std::pair<int, std::vector<std::string>> run_briefly(const std::string& command) {
  std::FILE* const pipe = ::popen(("timeout 20 " + command + " 2>&1 </dev/null").c_str(), "r");
  if (pipe == nullptr) return {127, {}};
  std::vector<std::string> lines(1);
  for (int c; (c = std::fgetc(pipe)) != EOF;) {
    if (c == '\n') {
      lines.emplace_back();
    } else {
      lines.back() += static_cast<char>(c);
    }
  }
  std::erase_if(lines, [](const std::string& line) { return line.find_first_not_of("- ") == std::string::npos; });
  const int status = ::pclose(pipe);
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 127, lines};
}

// Starts two processes by the mpirun of PATH, which must be of the linked library.
machine_check check_mpi(const std::string& library) {
  const auto [known, version] = run_briefly("mpirun --version");
  if (known != 0 || version.empty())
    return {"MPI", "no mpirun in PATH; muster was linked with " + library, "apt-get install openmpi-bin   # as root"};
  if (library.starts_with("Open MPI") && version.front().find("Open MPI") == std::string::npos)
    return {"MPI", "mpirun is of another MPI (" + version.front() + ") than the library (" + library + ")",
            "update-alternatives --set mpirun /usr/bin/mpirun.openmpi   # as root"};
  const auto [status, lines] = run_briefly("mpirun -n 2 true");
  if (status == 0) return {"MPI", version.front() + " starts two processes", ""};
  std::string text;
  for (const auto& line : lines) text += line + ' ';
  if (text.find("as root") != std::string::npos)
    return {"MPI", "mpirun starts nothing for root",
            "export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1"};
  if (text.find("not enough slots") != std::string::npos)
    return {"MPI", "mpirun has fewer slots than two ranks", "export OMPI_MCA_rmaps_base_oversubscribe=1"};
  return {"MPI", "mpirun -n 2 true ends with " + std::to_string(status) + ": " + text.substr(0, 200),
          "mpirun -n 2 --mca plm isolated true   # tells whether starting on other hosts is at fault"};
}

// Every deadline and every measurement reads the clock.
machine_check check_clock() {
  constexpr int reads = 10000;
  const auto begin = muster::clock::now();
  auto end = begin;
  for (int i = 0; i < reads; ++i) end = muster::clock::now();
  const double each = std::chrono::duration<double, std::nano>(end - begin).count() / reads;
  const std::string folder = "/sys/devices/system/clocksource/clocksource0/";
  const auto source = first_line_of(folder + "current_clocksource");
  machine_check result{
      "clock",
      std::to_string(static_cast<int>(each)) + " ns to read (" + (source.empty() ? "unknown source" : source) + ")",
      ""};
  if (each > 1000) {
    const bool has_tsc = first_line_of(folder + "available_clocksource").find("tsc") != std::string::npos;
    result.mend = has_tsc ? "echo tsc > " + folder + "current_clocksource   # as root"
                          : "cat " + folder + "available_clocksource   # choose a faster source with the host's owner";
  }
  return result;
}

// Timelines and logs of several hosts are compared by the time of day.
machine_check check_time_of_day() {
  timex state{};
  const int code = ::adjtimex(&state);
  if (code < 0) return {"time of day", "unknown (" + std::string(std::strerror(errno)) + ")", ""};
  if (code != TIME_ERROR) return {"time of day", "synchronised", ""};
  return {"time of day", "not synchronised: timelines of several hosts will not match",
          "timedatectl set-ntp true   # as root, on the host of a container"};
}

}  // namespace

int check_machine(const check_options& chosen, const std::string& mpi_library) {
  std::vector<machine_check> checks{check_files(), check_processes(), check_address_space(), check_cores(),
                                    check_shared_memory()};
  if (!mpi_library.empty()) {
    checks.push_back(done_visibly("starts a program of MPI", [&] { return check_mpi(mpi_library); }));
    checks.push_back(check_tracing());
  }
  checks.push_back(check_clock());
  checks.push_back(check_time_of_day());
  const auto add = [&](std::vector<machine_check> more) { checks.insert(checks.end(), more.begin(), more.end()); };
  if (chosen.listen >= 0) add(done_visibly("waits for the other host", [&] { return check_listening(chosen.listen); }));
  if (!chosen.reach.empty()) add(done_visibly("tries the other host", [&] { return check_reaching(chosen.reach); }));

  json report = json::array();
  int faults = 0;
  for (const auto& check : checks) {
    report.push_back({{"name", check.name}, {"found", check.found}, {"mend", check.mend}});
    if (!check.mend.empty()) ++faults;
    if (chosen.as_json) continue;
    std::printf("%-5s %-14s %s\n", check.mend.empty() ? "ok" : "MEND", check.name.c_str(), check.found.c_str());
    if (!check.mend.empty()) std::printf("%20s %s\n", "", check.mend.c_str());
  }
  if (chosen.as_json) {
    std::printf("%s\n", json{{"checks", report}}.dump(2, ' ', false, json::error_handler_t::replace).c_str());
  } else {
    std::printf(faults == 0 ? "nothing to mend\n" : "%d to mend, the first line first\n", faults);
  }
  return faults == 0 ? 0 : check_to_mend;
}
