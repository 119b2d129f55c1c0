// How the ranks of a host find each other: rank 0 listens, the others bring their memory, all ranks get that of all.
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <string>
#include <thread>

#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>

#include "../../timing.hpp"
#include "cores.hpp"
#include "host.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::uint64_t magic = 0x6d75737465720002;  // "muster", and the version of all that lies in shared memory
constexpr std::size_t cpu_words = CPU_SETSIZE / 64;

// What a rank says of itself; its memory and its pidfd travel beside it.
struct introduction {
  std::uint64_t protocol = magic;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  std::int32_t process = 0;
  std::int32_t has_process_handle = 0;
  std::uint64_t slot = 0;
  std::array<std::uint64_t, cpu_words> cpus{};
};

struct peer_info {
  introduction said;
  descriptor memory;
  descriptor process_handle;
};

[[noreturn]] void fail(const std::string& what) {
  throw error(error_kind::other, "the ranks of this host cannot connect (" + what + ": " + std::strerror(errno) +
                                     "); use another transport");
}

// A name that an address has no room for ends in its hash: two jobs with names that begin alike do not meet.
sockaddr_un address_of(std::string name, socklen_t& length) {
  sockaddr_un address{};
  constexpr std::size_t room = sizeof address.sun_path - 1;
  if (name.size() > room) {
    const auto hash = "#" + std::to_string(digest().add(std::string_view(name)).value());
    name.replace(room - hash.size(), std::string::npos, hash);
  }
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());  // behind a zero: a name outside of the file system
  length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

// `flags`: SOCK_NONBLOCK for one that connects, which would wait without a deadline where many wait to be accepted.
descriptor open_socket(int flags = 0) {
  descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!made) fail("socket");
  return made;
}

introduction introduce(int rank, int size, bool has_process_handle) {
  introduction mine;
  mine.rank = rank;
  mine.size = size;
  mine.process = ::getpid();
  mine.has_process_handle = has_process_handle ? 1 : 0;
  for (const auto cpu : allowed_cores()) mine.cpus[cpu / 64] |= std::uint64_t{1} << (cpu % 64);
  return mine;
}

bool send_introduction(int to, const introduction& said, int memory, int process_handle) {
  iovec bytes{const_cast<introduction*>(&said), sizeof said};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  const std::size_t count = said.has_process_handle != 0 ? 2 : 1;
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(count * sizeof(int));
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(count * sizeof(int));
  const int files[2] = {memory, process_handle};
  std::memcpy(CMSG_DATA(rights), files, count * sizeof(int));
  return ::sendmsg(to, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof said);
}

// False when the other side is gone or is no rank of muster.
bool receive_introduction(int from, peer_info& came) {
  iovec bytes{&came.said, sizeof came.said};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(from, &message, MSG_CMSG_CLOEXEC);
  descriptor files[2];
  const cmsghdr* const rights = got >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
    const std::size_t count = std::min<std::size_t>((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int), 2);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(rights) + i * sizeof(int), sizeof number);
      files[i] = descriptor(number);
    }
  }
  if (got != static_cast<ssize_t>(sizeof came.said) || came.said.protocol != magic || !files[0]) return false;
  came.memory = std::move(files[0]);
  came.process_handle = std::move(files[1]);
  return true;
}

using question = std::function<bool()>;

// How long a wait may last before it asks whether it still has a point.
int milliseconds_left(clock::time_point until, const question& given_up) {
  if (given_up && given_up()) throw peer_failure({}, "the bootstrap was aborted (a rank has ended)");
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now()).count();
  return static_cast<int>(std::clamp<long long>(left, 0, given_up ? shm_timing::bootstrap_poll.count() : 1000));
}

bool wait_readable(int file, clock::time_point until, const question& given_up) {
  pollfd watched{file, POLLIN, 0};
  for (;;) {
    if (::poll(&watched, 1, milliseconds_left(until, given_up)) == 1) return true;
    if (clock::now() >= until) return false;
  }
}

// Of the other side, as it was when that listened or connected.
uid_t user_of(int connection) {
  ucred who{};
  socklen_t length = sizeof who;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &who, &length) != 0) fail("credentials");
  return who.uid;
}

// Any user may take any name outside of the file system.
void require_own(int connection, const std::string& name) {
  const uid_t holder = user_of(connection);
  if (holder == ::getuid()) return;
  throw configuration_error("the ranks of this host cannot connect at '" + name + "' (user " + std::to_string(holder) +
                            " owns that socket name); choose another --job or MUSTER_JOB");
}

// What rank 0 does: a connection belongs to no rank until it has said one.
class bootstrap_acceptor {
 public:
  bootstrap_acceptor(const std::string& name, int size, seconds timeout)
      : size_(size), timeout_(timeout), connections_(static_cast<std::size_t>(size)), infos_(connections_.size()) {
    listener_ = open_socket();
    socklen_t length = 0;
    const sockaddr_un address = address_of(name, length);
    if (::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), length) != 0) {
      if (errno == EADDRINUSE) {
        const descriptor holder = open_socket(SOCK_NONBLOCK);
        if (::connect(holder.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0)
          require_own(holder.get(), name);
        throw configuration_error("the ranks of this host cannot connect at '" + name +
                                  "' (another job uses that name); give each job its own MUSTER_JOB");
      }
      fail("bind");
    }
    if (::listen(listener_.get(), 128) != 0) fail("listen");
  }

  std::vector<peer_info> receive_all(clock::time_point until, const question& given_up) {
    for (int missing = size_ - 1; missing > 0;) {
      std::vector<pollfd> watched{{listener_.get(), POLLIN, 0}};
      for (const auto& one : pending_) watched.push_back({one.get(), POLLIN, 0});
      for (const auto& one : connections_) {
        if (one) watched.push_back({one.get(), POLLIN, 0});  // one that has introduced itself says nothing more
      }
      const int left = milliseconds_left(until, given_up);
      if (left == 0) throw timeout_error("meeting", 0, missing_ranks(), timeout_.count());
      if (::poll(watched.data(), watched.size(), left) <= 0) continue;
      for (std::size_t i = 1; i < watched.size(); ++i) {
        if (watched[i].revents == 0) continue;
        if (i > pending_.size()) lose(watched[i].fd);
        if (greet(pending_[i - 1])) --missing;
      }
      std::erase_if(pending_, [](const descriptor& one) { return !one; });
      if (watched[0].revents != 0) {
        descriptor came(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (came && user_of(came.get()) == ::getuid()) pending_.push_back(std::move(came));
      }
    }
    return std::move(infos_);
  }

  [[nodiscard]] int connection(int rank) const { return connections_[static_cast<std::size_t>(rank)].get(); }

 private:
  bool greet(descriptor& pending) {
    descriptor here = std::move(pending);
    peer_info came;
    if (!receive_introduction(here.get(), came)) return false;
    const int rank = came.said.rank;
    if (came.said.size != size_ || rank < 1 || rank >= size_ || connections_[static_cast<std::size_t>(rank)]) {
      throw configuration_error(
          "rank " + std::to_string(rank) + " of " + std::to_string(came.said.size) + " tried to join a job of " +
          std::to_string(size_) +
          " (two jobs have one name, or a rank was started twice); give each job its own MUSTER_JOB");
    }
    connections_[static_cast<std::size_t>(rank)] = std::move(here);
    infos_[static_cast<std::size_t>(rank)] = std::move(came);
    return true;
  }

  [[noreturn]] void lose(int connection) const {
    for (int rank = 1; rank < size_; ++rank) {
      if (this->connection(rank) == connection) fail_bootstrap_without(rank);
    }
    fail("a connection");
  }

  [[nodiscard]] std::vector<int> missing_ranks() const {
    std::vector<int> missing;
    for (int rank = 1; rank < size_; ++rank) {
      if (!connections_[static_cast<std::size_t>(rank)]) missing.push_back(rank);
    }
    return missing;
  }

  int size_;
  seconds timeout_;
  descriptor listener_;
  std::vector<descriptor> pending_;  // connected, and not yet known
  std::vector<descriptor> connections_;
  std::vector<peer_info> infos_;
};

descriptor reach_rank_0(const std::string& name, clock::time_point until, seconds timeout, const question& given_up) {
  socklen_t length = 0;
  const sockaddr_un address = address_of(name, length);
  auto nap = std::chrono::microseconds(100);
  for (;;) {
    descriptor here = open_socket(SOCK_NONBLOCK);
    if (::connect(here.get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) {
      require_own(here.get(), name);
      return here;
    }
    if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN && errno != EINTR) {
      fail("connect");
    }
    if (milliseconds_left(until, given_up) == 0) throw timeout_error("meeting", 0, {0}, timeout.count());
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(given_up ? 500 : 10000));
  }
}

std::vector<peer_info> accept_all_ranks(const std::string& name, const introduction& mine, const segment& own,
                                        int process_handle, clock::time_point until, seconds timeout,
                                        const question& given_up) {
  bootstrap_acceptor here(name, mine.size, timeout);
  auto infos = here.receive_all(until, given_up);
  for (int to = 1; to < mine.size; ++to) {
    bool told = send_introduction(here.connection(to), mine, own.memory().file(), process_handle);
    for (int of = 1; of < mine.size; ++of) {
      const auto& other = infos[static_cast<std::size_t>(of)];
      if (of != to)
        told =
            told && send_introduction(here.connection(to), other.said, other.memory.get(), other.process_handle.get());
    }
    if (!told) fail_bootstrap_without(to);
  }
  return infos;
}

std::vector<peer_info> connect_to_rank_0(const std::string& name, const introduction& mine, const segment& own,
                                         int process_handle, clock::time_point until, seconds timeout,
                                         const question& given_up) {
  const descriptor to = reach_rank_0(name, until, timeout, given_up);
  if (!send_introduction(to.get(), mine, own.memory().file(), process_handle)) {
    if (errno == EPIPE || errno == ECONNRESET) fail_bootstrap_without(0);
    fail("send");
  }
  std::vector<peer_info> infos(static_cast<std::size_t>(mine.size));
  for (int i = 1; i < mine.size; ++i) {
    if (!wait_readable(to.get(), until, given_up)) throw timeout_error("meeting", 0, {}, timeout.count());
    peer_info came;
    if (!receive_introduction(to.get(), came))
      throw peer_failure({0}, "rank 0 gave up before all ranks were connected; see its own message");
    const int rank = came.said.rank;
    if (rank < 0 || rank >= mine.size || rank == mine.rank || infos[static_cast<std::size_t>(rank)].memory) {
      throw configuration_error("rank 0 at '" + name + "' announces a rank " + std::to_string(rank) + " of " +
                                std::to_string(mine.size) +
                                " (another program listens there); give each job its own MUSTER_JOB");
    }
    infos[static_cast<std::size_t>(rank)] = std::move(came);
  }
  return infos;
}

}  // namespace

void fail_bootstrap_without(int rank) {
  throw peer_failure({rank}, "rank " + std::to_string(rank) + " ended before all ranks were connected");
}

std::shared_ptr<shm_host> bootstrap_host(const std::string& name, int rank, int size, std::shared_ptr<segment> own,
                                         seconds timeout, std::uint64_t slot, const question& given_up) {
  const auto until = deadline_after(timeout);
  const descriptor process_handle(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));  // none before Linux 5.3
  introduction mine = introduce(rank, size, static_cast<bool>(process_handle));
  mine.slot = slot;
  auto infos = rank == 0 ? accept_all_ranks(name, mine, *own, process_handle.get(), until, timeout, given_up)
                         : connect_to_rank_0(name, mine, *own, process_handle.get(), until, timeout, given_up);

  auto cpus = mine.cpus;
  std::vector<shm_host::peer> peers(infos.size());
  const std::size_t reserve = own->memory().reserve();
  for (std::size_t r = 0; r < infos.size(); ++r) {
    peers[r].slot = static_cast<int>(r) == rank ? slot : infos[r].said.slot;
    if (static_cast<int>(r) == rank) continue;
    for (std::size_t i = 0; i < cpu_words; ++i) cpus[i] |= infos[r].said.cpus[i];
    peers[r].memory = mapping(std::move(infos[r].memory), reserve);
    peers[r].process_handle = std::move(infos[r].process_handle);
    peers[r].process = infos[r].said.process;
  }
  int cores = 0;
  for (const auto word : cpus) cores += __builtin_popcountll(word);
  return std::make_shared<shm_host>(rank, std::move(own), std::move(peers), size > std::max(cores, 1));
}

}  // namespace muster::inline v0::detail
