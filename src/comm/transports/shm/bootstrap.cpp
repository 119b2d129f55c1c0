// How the ranks of a host find each other: rank 0 listens, the others bring their memory, all ranks get that of all.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include "../../timing.hpp"
#include "cores.hpp"
#include "host.hpp"

namespace muster { inline namespace v0 { namespace detail {
namespace {

constexpr std::uint64_t magic = 0x6d75737465720005;  // "muster", and the version of all that lies in shared memory

// What a rank says of itself; its memory and its pidfd, if it has one, travel beside it.
struct introduction {
  std::uint64_t protocol = magic;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t trouble = 0;  // of the system, by which it gives up; nothing else counts then
  std::int64_t process = 0;
  std::uint64_t slot = 0;
  cpu_set_t cores{};  // that it may run on
};

struct peer_info {
  introduction said;
  descriptor memory;
  descriptor process_handle;
};

// What the other ranks are told of a failure of the system.
struct trouble {
  int rank;  // where it was
  int code;
};

std::string describe_trouble(const std::string& what, int code) {
  return "the ranks of this host cannot connect (" + what + ": " + std::strerror(code) + "); " +
         (code == EMFILE ? "raise the limit of descriptors (ulimit -n)" : "use another transport");
}

// At this rank.
class system_failure : public error, public trouble {
 public:
  system_failure(const std::string& what, int reason)
      : error(error_kind::other, describe_trouble(what, reason)), trouble{-1, reason} {}
};

// At another one, which ends of it: an elastic job goes on without that.
class told_failure : public peer_failure, public trouble {
 public:
  told_failure(int where, int reason)
      : peer_failure({where}, describe_trouble("at rank " + std::to_string(where), reason),
                     static_cast<int>(error_kind::other)),
        trouble{where, reason} {}
};

[[noreturn]] void fail(const std::string& what) { throw system_failure(what, errno); }

// A name outside of the file system. One that an address has no room for ends in its hash: two jobs with names that
// begin alike do not meet.
struct unix_address {
  explicit unix_address(std::string name) {
    constexpr std::size_t room = sizeof of.sun_path - 1;
    if (name.size() > room) {
      const auto hash = "#" + std::to_string(digest().add(std::string_view(name)).value());
      name.replace(room - hash.size(), std::string::npos, hash);
    }
    std::memcpy(of.sun_path + 1, name.data(), name.size());  // behind a zero
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&of); }

  sockaddr_un of{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t length;
};

// `flags`: SOCK_NONBLOCK for one that connects, which would wait without a deadline where many wait to be accepted.
descriptor open_socket(int flags = 0) {
  descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!made) fail("socket");
  return made;
}

bool send(int to, const peer_info& of) {
  iovec bytes{const_cast<introduction*>(&of.said), sizeof of.said};  // it is only read
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  const int files[] = {of.memory.get(), of.process_handle.get()};
  const std::size_t size = (of.process_handle ? 2 : 1) * sizeof(int);
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!of.memory) return ::sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof of.said);
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(size);
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(rights), files, size);
  return ::sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof of.said);
}

// False when the other side is gone or is no rank of muster.
bool receive(int from, peer_info& came) {
  iovec bytes{&came.said, sizeof came.said};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const rights = got >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
    int files[] = {-1, -1};
    std::memcpy(files, CMSG_DATA(rights), std::min<std::size_t>(rights->cmsg_len - CMSG_LEN(0), sizeof files));
    came.memory = descriptor(files[0]);
    came.process_handle = descriptor(files[1]);
  }
  // The system gave no numbers to the descriptors that came.
  if (got >= 0 && (message.msg_flags & MSG_CTRUNC) != 0) throw system_failure("the memory of another rank", EMFILE);
  if (got == static_cast<ssize_t>(sizeof came.said) && came.said.protocol == magic && came.said.trouble != 0)
    throw told_failure(came.said.rank, came.said.trouble);
  return got == static_cast<ssize_t>(sizeof came.said) && came.said.protocol == magic && came.memory;
}

// Of the other side, as it was when that listened or connected.
uid_t user_of(int connection) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) fail("credentials");
  return credentials.uid;
}

class bootstrap {
 public:
  bootstrap(const std::string& name, peer_info mine, seconds timeout, const std::function<bool()>& given_up)
      : name_(name),
        address_(name),
        rank_(mine.said.rank),
        size_(mine.said.size),
        timeout_(timeout),
        until_(deadline_after(timeout)),
        given_up_(given_up),
        infos_(static_cast<std::size_t>(size_)) {
    info(rank_) = std::move(mine);
  }

  // All ranks, in their order.
  std::vector<peer_info> run() {
    std::vector<descriptor> others(rank_ == 0 ? infos_.size() : 1);  // as far as they are connected
    try {
      rank_ == 0 ? accept_all_ranks(others) : connect_to_rank_0(others.front());
    } catch (const error& failed) {
      const auto* const its = dynamic_cast<const trouble*>(&failed);
      for (const auto& one : others) {
        if (its != nullptr && one) (void)send(one.get(), last_word_of(*its));
      }
      throw;
    }
    return std::move(infos_);
  }

 private:
  static constexpr std::chrono::microseconds first_nap{100};
  [[nodiscard]] std::chrono::microseconds longest_nap() const {
    return std::chrono::microseconds(given_up_ ? 500 : 10000);
  }
  [[nodiscard]] peer_info& info(int rank) { return infos_[static_cast<std::size_t>(rank)]; }

  // How long a wait may last before it asks whether it still has a point. Throws when it has none, or its time is over.
  [[nodiscard]] int milliseconds_left(const std::vector<int>& missing) const {
    if (given_up_ && given_up_()) throw peer_failure({}, "the bootstrap was aborted (a rank has ended)");
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until_ - clock::now()).count();
    if (left <= 0) throw timeout_error("meeting", 0, missing, timeout_.count());
    return static_cast<int>(std::min<long long>(left, given_up_ ? shm_timing::bootstrap_poll.count() : 1000));
  }

  // Any user may take any name outside of the file system.
  void require_own(const descriptor& connection) const {
    const uid_t holder = user_of(connection.get());
    if (holder == ::getuid()) return;
    throw configuration_error("the ranks of this host cannot connect at '" + name_ + "' (user " +
                              std::to_string(holder) + " owns that socket name); choose another --job or MUSTER_JOB");
  }

  [[nodiscard]] descriptor listen() const {
    descriptor listener = open_socket();
    if (::bind(listener.get(), address_.get(), address_.length) != 0) {
      if (errno != EADDRINUSE) fail("bind");
      const descriptor holder = open_socket(SOCK_NONBLOCK);
      if (::connect(holder.get(), address_.get(), address_.length) == 0) require_own(holder);
      throw configuration_error("the ranks of this host cannot connect at '" + name_ +
                                "' (another job uses that name); give each job its own MUSTER_JOB");
    }
    if (::listen(listener.get(), 128) != 0) fail("listen");
    return listener;
  }

  // Waits for the next events; false once all ranks are there.
  bool accept_some(const descriptor& listener, std::vector<descriptor>& pending, std::vector<descriptor>& connections) {
    std::vector<int> missing;
    std::vector<pollfd> watched{{listener.get(), POLLIN, 0}};
    for (const auto& one : pending) watched.push_back({one.get(), POLLIN, 0});
    for (int rank = 1; rank < size_; ++rank) {
      const auto& one = connections[static_cast<std::size_t>(rank)];
      if (!one) missing.push_back(rank);
      watched.push_back({one.get(), POLLIN, 0});  // one that has introduced itself says nothing more
    }
    if (missing.empty()) return false;
    if (::poll(watched.data(), watched.size(), milliseconds_left(missing)) <= 0) return true;
    const std::size_t known = pending.size() + 1;
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      if (i >= known) lose(static_cast<int>(i - known) + 1, connections[i - known + 1]);
      greet(pending[i - 1], connections);
    }
    std::erase_if(pending, [](const descriptor& one) { return !one; });
    if (watched[0].revents != 0) {
      descriptor came(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      const int code = came ? 0 : errno;
      if (code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM) throw system_failure("accept", code);
      if (came && user_of(came.get()) == ::getuid()) pending.push_back(std::move(came));
    }
    return true;
  }

  // A connection belongs to no rank until it has said one.
  void accept_all_ranks(std::vector<descriptor>& connections) {
    const descriptor listener = listen();
    descriptor spare(::fcntl(listener.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    std::vector<descriptor> pending;
    try {
      while (accept_some(listener, pending, connections)) {
      }
    } catch (const error& failed) {
      spare = {};
      if (const auto* const its = dynamic_cast<const trouble*>(&failed))
        tell_the_rest(listener, pending, connections, last_word_of(*its));
      throw;
    }
    for (int to = 1; to < size_; ++to) {
      for (int of = 0; of < size_; ++of) {
        if (of != to) send_in_time(connections[static_cast<std::size_t>(to)], info(of), to);
      }
    }
  }

  [[nodiscard]] peer_info last_word_of(const trouble& its) const {
    peer_info last;
    last.said.rank = its.rank < 0 ? rank_ : its.rank;
    last.said.trouble = its.code;
    return last;
  }

  // Ranks that have not introduced themselves would wait for this one until their deadlines.
  void tell_the_rest(const descriptor& listener, const std::vector<descriptor>& pending,
                     const std::vector<descriptor>& connections, const peer_info& last) const {
    auto missing = std::count_if(connections.begin() + 1, connections.end(), [](const auto& one) { return !one; });
    for (const auto& one : pending) {
      if (one && send(one.get(), last)) --missing;
    }
    const auto until = deadline_after(shm_timing::last_word);
    pollfd watched{listener.get(), POLLIN, 0};
    while (missing > 0 && clock::now() < until) {
      if (::poll(&watched, 1, 100) != 1) continue;
      const descriptor came(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (came && user_of(came.get()) == ::getuid() && send(came.get(), last)) --missing;
    }
  }

  // It may have given the reason.
  [[noreturn]] static void lose(int rank, const descriptor& over) {
    peer_info last;
    (void)receive(over.get(), last);
    fail_bootstrap_without(rank);
  }

  // A rank that reads late has no room for a while; and the system limits how many descriptors of a user are on their
  // way, whichever program sent them, by RLIMIT_NOFILE.
  void send_in_time(const descriptor& over, const peer_info& of, int to) const {
    for (auto nap = first_nap; !send(over.get(), of); nap = std::min(nap * 2, longest_nap())) {
      // The last two: what some versions of Linux say at the moment at which the other side ends.
      if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED || errno == ENOTCONN) lose(to, over);
      if (errno != EAGAIN && errno != ETOOMANYREFS && errno != EINTR) fail("send");
      (void)milliseconds_left({to});
      std::this_thread::sleep_for(nap);
    }
  }

  // Takes the connection, unless the system fails.
  void greet(descriptor& from, std::vector<descriptor>& connections) {
    peer_info came;
    const bool has_come = receive(from.get(), came);
    descriptor here = std::move(from);
    if (!has_come) return;
    const int rank = came.said.rank;
    if (came.said.size != size_ || rank < 1 || rank >= size_ || info(rank).memory) {
      throw configuration_error(
          "rank " + std::to_string(rank) + " of " + std::to_string(came.said.size) + " tried to join a job of " +
          std::to_string(size_) +
          " (two jobs have one name, or a rank was started twice); give each job its own MUSTER_JOB");
    }
    connections[static_cast<std::size_t>(rank)] = std::move(here);
    info(rank) = std::move(came);
  }

  [[nodiscard]] descriptor reach_rank_0() const {
    for (auto nap = first_nap;; nap = std::min(nap * 2, longest_nap())) {
      descriptor here = open_socket(SOCK_NONBLOCK);
      if (::connect(here.get(), address_.get(), address_.length) == 0) {
        require_own(here);
        return here;
      }
      if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN && errno != EINTR) fail("connect");
      (void)milliseconds_left({0});
      std::this_thread::sleep_for(nap);
    }
  }

  void connect_to_rank_0(descriptor& to) {
    to = reach_rank_0();
    send_in_time(to, info(rank_), 0);
    for (int i = 1; i < size_; ++i) {
      pollfd watched{to.get(), POLLIN, 0};
      while (::poll(&watched, 1, milliseconds_left({})) != 1) {
      }
      peer_info came;
      if (!receive(to.get(), came))
        throw peer_failure({0}, "rank 0 gave up before all ranks were connected; see its own message");
      const int rank = came.said.rank;
      if (rank < 0 || rank >= size_ || info(rank).memory) {
        throw configuration_error("rank 0 at '" + name_ + "' announces a rank " + std::to_string(rank) + " of " +
                                  std::to_string(size_) +
                                  " (another program listens there); give each job its own MUSTER_JOB");
      }
      info(rank) = std::move(came);
    }
  }

  const std::string& name_;
  unix_address address_;
  int rank_;
  int size_;
  seconds timeout_;
  clock::time_point until_;
  const std::function<bool()>& given_up_;
  std::vector<peer_info> infos_;
};

}  // namespace

void fail_bootstrap_without(int rank) {
  throw peer_failure({rank}, "rank " + std::to_string(rank) + " ended before all ranks were connected");
}

std::shared_ptr<shm_host> bootstrap_host(const std::string& name, int rank, int size, std::shared_ptr<segment> own,
                                         seconds timeout, std::uint64_t slot, const std::function<bool()>& given_up) {
  peer_info mine;
  mine.said.rank = rank;
  mine.said.size = size;
  mine.said.process = ::getpid();
  mine.said.slot = slot;
  ::sched_getaffinity(0, sizeof mine.said.cores, &mine.said.cores);
  mine.memory = descriptor(::fcntl(own->memory().file(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  mine.process_handle = descriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));  // since Linux 5.3
  if (!mine.memory) fail("dup");
  auto infos = bootstrap(name, std::move(mine), timeout, given_up).run();

  cpu_set_t cores{};
  std::vector<shm_host::peer> peers(infos.size());
  for (std::size_t r = 0; r < infos.size(); ++r) {
    CPU_OR(&cores, &cores, &infos[r].said.cores);
    peers[r].slot = infos[r].said.slot;
    if (static_cast<int>(r) == rank) continue;
    peers[r].memory = mapping(std::move(infos[r].memory), own->memory().reserve());
    peers[r].process_handle = std::move(infos[r].process_handle);
    peers[r].process = static_cast<pid_t>(infos[r].said.process);
  }
  return std::make_shared<shm_host>(rank, std::move(own), std::move(peers), cores_of(cores));
}

}}}  // namespace muster::v0::detail
