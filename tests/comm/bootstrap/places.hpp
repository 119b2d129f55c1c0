// Stores of every kind for tests, in this process and in others.
#pragma once

#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cerrno>

#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <muster/comm/bootstrap/store.hpp>
#include <muster/comm/bootstrap/tcp_store.hpp>

#ifdef MUSTER_HAS_ETCD
#include <muster/comm/bootstrap/etcd_store.hpp>
#endif

namespace places {

using muster::any_store;
using muster::deadline_after;
using muster::seconds;

/// Returns a deadline that is long enough on any machine, for calls that should not time out.
inline auto soon() { return deadline_after(seconds(60)); }

/// Opens a store from the words that `place::words` holds: "tcp ADDRESS TOKEN" or "etcd ADDRESS NAME".
inline std::unique_ptr<any_store> open(const std::vector<std::string>& words) {
  if (words.at(0) == "tcp") {
    return std::make_unique<muster::tcp_store>(words.at(1), words.at(2), soon());
  }
#ifdef MUSTER_HAS_ETCD
  if (words.at(0) == "etcd") return std::make_unique<muster::etcd_store>(words.at(1), "http", words.at(2), soon());
#endif
  throw std::invalid_argument("no such store: " + words.at(0));
}

#ifdef MUSTER_HAS_ETCD
/// An etcd for the tests, on a free port, which ends with this process.
class etcd_process {
 public:
  etcd_process() {
    std::string name = (std::filesystem::temp_directory_path() / "muster-etcd-XXXXXX").string();
    folder_ = mkdtemp(name.data());
    const auto clients = free_port();
    const auto peers = free_port();
    address_ = "127.0.0.1:" + clients;
    const std::string url = "http://" + address_;
    const std::string peer_url = "http://127.0.0.1:" + peers;
    const std::vector<std::string> words{"etcd",
                                         "--data-dir",
                                         folder_ / "data",
                                         "--listen-client-urls",
                                         url,
                                         "--advertise-client-urls",
                                         url,
                                         "--listen-peer-urls",
                                         peer_url,
                                         "--initial-advertise-peer-urls",
                                         peer_url,
                                         "--initial-cluster",
                                         "default=" + peer_url,
                                         "--log-level",
                                         "error"};
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      std::vector<char*> arguments;
      for (const auto& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
      arguments.push_back(nullptr);
      if (freopen("/dev/null", "w", stderr) == nullptr) _exit(1);
      execvp("etcd", arguments.data());
      _exit(127);
    }
  }
  etcd_process(const etcd_process&) = delete;
  etcd_process& operator=(const etcd_process&) = delete;
  ~etcd_process() {
    send(SIGKILL);
    waitpid(process_, nullptr, 0);
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  void send(int signal) const { kill(process_, signal); }
  /// Stops the process; on return no thread of the process runs any more.
  void stop() const {
    send(SIGSTOP);
    await(WSTOPPED);
  }
  void end() const {
    send(SIGKILL);
    await(WEXITED);
  }
  [[nodiscard]] const std::string& address() const { return address_; }

 private:
  /// Returns a free port, which stays bound until this process ends, without a listener. The system therefore assigns
  /// it to no other program, and a program that sets SO_REUSEADDR, as an etcd does, can listen on it.
  static std::string free_port() {
    const int held = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    sockaddr_in at{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
    socklen_t size = sizeof at;
    auto* const address = reinterpret_cast<sockaddr*>(&at);
    if (setsockopt(held, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 || bind(held, address, size) != 0 ||
        getsockname(held, address, &size) != 0) {
      throw std::runtime_error("no port is free");
    }
    return std::to_string(ntohs(at.sin_port));
  }
  void await(int events) const {
    siginfo_t happened;
    while (waitid(P_PID, static_cast<id_t>(process_), &happened, events | WNOWAIT) < 0 && errno == EINTR) {
    }
  }
  std::filesystem::path folder_;
  std::string address_;
  pid_t process_ = -1;
};

inline bool has_etcd() {
  static const bool has = std::system("etcd --version > /dev/null 2>&1") == 0;
  return has;
}
/// Returns the etcd that all tests in this process share.
inline const etcd_process& an_etcd() {
  static const etcd_process shared;
  return shared;
}
#endif

/// The place of a store, which exists as long as this object.
struct place {
  explicit place(const std::string& kind) {
    if (kind == "tcp") {
      server = std::make_unique<muster::store_server>("127.0.0.1:0", "a secret");
      words = {"tcp", server->address(), "a secret"};
    }
#ifdef MUSTER_HAS_ETCD
    if (kind == "etcd") {
      static int number = 0;
      words = {"etcd", an_etcd().address(), "test-" + std::to_string(getpid()) + "-" + std::to_string(++number)};
    }
#endif
  }
  place(const place&) = delete;
  place& operator=(const place&) = delete;
  [[nodiscard]] std::unique_ptr<any_store> open() const { return places::open(words); }

  std::vector<std::string> words;
  std::unique_ptr<muster::store_server> server;
};

inline std::vector<std::string> kinds() {
  std::vector<std::string> all{"tcp"};
#ifdef MUSTER_HAS_ETCD
  if (has_etcd()) all.emplace_back("etcd");
#endif
  return all;
}

}  // namespace places
