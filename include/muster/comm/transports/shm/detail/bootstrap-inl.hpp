// The bootstrap on a host, over a Unix socket of type SOCK_SEQPACKET in the abstract namespace.
//
// Steps:
// - Rank 0 listens at the name. Every other rank connects and sends its record, with the descriptors for its memory
// file and, if supported, its pidfd.
// - Rank 0 accepts a connection only from a process of the same user. A connection belongs to a rank once its record
//   has arrived.
// - When all records have arrived, rank 0 sends to each rank all other records, with their descriptors.
// - A rank that fails because of the system sends a record with an `error_code` over its open connections. The receiver
//   throws a peer_failure with the same cause. Rank 0 sends that record, and the records of this kind that it receives,
//   also to pending connections and to ranks that connect within `shm_timing::failure_report`.
//
// Invariant: no rank returns from the bootstrap without every rank's memory.
#pragma once

#include <muster/comm/transports/shm/host.hpp>

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

#include <muster/comm/comm_timing.hpp>
#include <muster/comm/transports/shm/cores.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/inline.hpp>

namespace muster { inline namespace v0 { namespace detail {

inline constexpr std::uint64_t bootstrap_magic =
    0x6d75737465720006;  // "muster", and the version of the layout of shared memory

// The record of a rank. The descriptors for the memory and, if supported, for the pidfd are sent with the record.
struct rank_record {
  std::uint64_t protocol = bootstrap_magic;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  // errno of a failure; if it is not 0, the other fields except the rank are not used. With EPROTO the rank does not
  // belong to the job: `size` is its size, and `slot` the size of rank 0.
  std::int32_t error_code = 0;
  std::int64_t process = 0;
  std::uint64_t slot = 0;
  cpu_set_t cores{};  // cores on which the rank may run
};

struct peer_info {
  rank_record record;
  descriptor memory;
  descriptor process_handle;
};

// The part of a system failure that a rank reports to the other ranks.
struct failure_report {
  int failed_rank;  // -1 for this rank
  int error_code;
  int size = 0, size_of_first = 0;  // with EPROTO
};

inline std::string failure_text(const std::string& problem, int error_code) {
  return "the ranks on this host cannot connect (" + problem + ": " + std::strerror(error_code) + "); " +
         (error_code == EMFILE ? "raise the limit of descriptors (ulimit -n)" : "use another transport");
}

// The error for a failure of a system call at this rank.
class system_failure : public error, public failure_report {
 public:
  system_failure(const std::string& problem, int code)
      : error(error_kind::other, failure_text(problem, code)), failure_report{-1, code} {}
};

// The error for a failure of a system call at another rank. That rank ends, and an elastic job continues without it.
class reported_failure : public peer_failure, public failure_report {
 public:
  reported_failure(int rank, int code)
      : peer_failure({rank}, failure_text("at rank " + std::to_string(rank), code),
                     static_cast<int>(error_kind::other)),
        failure_report{rank, code} {}
};

// The error for a rank that does not belong to the job of rank 0. Rank 0 detects that rank. The rank itself throws the
// same error after the report of rank 0.
class rank_of_other_job : public configuration_error, public failure_report {
 public:
  rank_of_other_job(int rank, int own_size, int first_size)
      : configuration_error("rank 0 was started with a size of " + std::to_string(first_size) + ", and rank " +
                            std::to_string(rank) + " with a size of " + std::to_string(own_size) +
                            " (WORLD_SIZE differs, two jobs have the same name, or a rank was started twice); start "
                            "all ranks with the same WORLD_SIZE, and give each job its own MUSTER_JOB"),
        failure_report{rank, EPROTO, own_size, first_size} {}
};

[[noreturn]] inline void fail(const std::string& problem) { throw system_failure(problem, errno); }

// A name in the abstract namespace. A name that exceeds the capacity of an address is cut and ends in its hash, so two
// jobs whose names have the same beginning do not connect to each other.
struct unix_address {
  explicit unix_address(std::string name) {
    constexpr std::size_t capacity = sizeof address.sun_path - 1;
    if (name.size() > capacity) {
      const auto hash = "#" + std::to_string(digest().add(std::string_view(name)).value());
      name.replace(capacity - hash.size(), std::string::npos, hash);
    }
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // the first byte is zero: abstract namespace
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  }
  [[nodiscard]] const sockaddr* get() const noexcept { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t length;
};

// Opens a socket. `flags` is SOCK_NONBLOCK for a socket that connects: a blocking connect would wait without a deadline
// while many connections wait for rank 0 to accept them.
inline descriptor open_socket(int flags = 0) {
  descriptor opened(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!opened) fail("socket");
  return opened;
}

// Sends a record, with descriptors if the record has memory. Returns false if the system refuses; the reason is in
// errno.
inline bool send(int connection, const peer_info& info) {
  iovec bytes{const_cast<rank_record*>(&info.record), sizeof info.record};  // sendmsg only reads the record
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  const int descriptors[] = {info.memory.get(), info.process_handle.get()};
  const std::size_t size = (info.process_handle ? 2 : 1) * sizeof(int);
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  if (!info.memory) return ::sendmsg(connection, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof info.record);
  message.msg_control = control;
  message.msg_controllen = CMSG_SPACE(size);
  cmsghdr* const rights = CMSG_FIRSTHDR(&message);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(size);
  std::memcpy(CMSG_DATA(rights), descriptors, size);
  return ::sendmsg(connection, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof info.record);
}

// Receives a record. Returns false if the other side has closed the connection or is no rank of muster. Throws the
// failure that a record reports.
inline bool receive(int connection, peer_info& info) {
  iovec bytes{&info.record, sizeof info.record};
  alignas(cmsghdr) char control[CMSG_SPACE(2 * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &bytes;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t received = ::recvmsg(connection, &message, MSG_CMSG_CLOEXEC);
  const cmsghdr* const rights = received >= 0 ? CMSG_FIRSTHDR(&message) : nullptr;
  if (rights != nullptr && rights->cmsg_level == SOL_SOCKET && rights->cmsg_type == SCM_RIGHTS) {
    int descriptors[] = {-1, -1};
    std::memcpy(descriptors, CMSG_DATA(rights),
                std::min<std::size_t>(rights->cmsg_len - CMSG_LEN(0), sizeof descriptors));
    info.memory = descriptor(descriptors[0]);
    info.process_handle = descriptor(descriptors[1]);
  }
  // This process has no free descriptor numbers for the received descriptors.
  if (received >= 0 && (message.msg_flags & MSG_CTRUNC) != 0)
    throw system_failure("the memory of another rank", EMFILE);
  if (received == static_cast<ssize_t>(sizeof info.record) && info.record.protocol == bootstrap_magic &&
      info.record.error_code != 0) {
    if (info.record.error_code == EPROTO)
      throw rank_of_other_job(info.record.rank, info.record.size, static_cast<int>(info.record.slot));
    throw reported_failure(info.record.rank, info.record.error_code);
  }
  return received == static_cast<ssize_t>(sizeof info.record) && info.record.protocol == bootstrap_magic && info.memory;
}

// Returns the user of the peer, at the time at which the peer listened or connected.
inline uid_t user_of(int connection) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(connection, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) fail("credentials");
  return credentials.uid;
}

class bootstrap {
 public:
  bootstrap(const std::string& name, peer_info mine, seconds timeout, const std::function<bool()>& is_aborted)
      : name_(name),
        address_(name),
        rank_(mine.record.rank),
        rank_count_(mine.record.size),
        timeout_(timeout),
        deadline_(deadline_after(timeout)),
        is_aborted_(is_aborted),
        infos_(static_cast<std::size_t>(rank_count_)) {
    info(rank_) = std::move(mine);
  }

  // Runs the bootstrap and returns all records, in the order of ranks.
  std::vector<peer_info> run() {
    std::vector<descriptor> connections(rank_ == 0 ? infos_.size() : 1);  // empty for ranks that are not connected
    try {
      rank_ == 0 ? accept_all_ranks(connections) : connect_to_rank_0(connections.front());
    } catch (const error& failure) {
      const auto* const report = dynamic_cast<const failure_report*>(&failure);
      for (const auto& connection : connections) {
        if (report != nullptr && connection) (void)send(connection.get(), record_of(*report));
      }
      throw;
    }
    return std::move(infos_);
  }

 private:
  static constexpr std::chrono::microseconds first_delay{100};
  // Returns the longest delay between two attempts; shorter with `is_aborted_`, which is then polled more often.
  [[nodiscard]] std::chrono::microseconds longest_delay() const {
    return std::chrono::microseconds(is_aborted_ ? 500 : 10000);
  }
  [[nodiscard]] peer_info& info(int rank) { return infos_[static_cast<std::size_t>(rank)]; }

  // Returns the longest wait in milliseconds before the next check of the deadline and of `is_aborted_`. Throws
  // peer_failure after an abort, and after the deadline timeout_error that names the ranks in `missing`.
  [[nodiscard]] int milliseconds_left(const std::vector<int>& missing) const {
    if (is_aborted_ && is_aborted_()) throw peer_failure({}, "the bootstrap was aborted (a rank has ended)");
    const auto remaining = std::chrono::ceil<std::chrono::milliseconds>(deadline_ - clock::now()).count();
    if (remaining <= 0) throw timeout_error("meeting", 0, missing, timeout_.count());
    return static_cast<int>(std::min<long long>(remaining, is_aborted_ ? shm_timing::bootstrap_poll.count() : 1000));
  }

  // Throws unless the peer belongs to the same user: any user may bind any name in the abstract namespace.
  void require_same_user(const descriptor& connection) const {
    const uid_t holder = user_of(connection.get());
    if (holder == ::getuid()) return;
    throw configuration_error("the ranks on this host cannot connect at '" + name_ + "' (user " +
                              std::to_string(holder) + " owns that socket name); choose another --job or MUSTER_JOB");
  }

  [[nodiscard]] descriptor listen() const {
    descriptor listener = open_socket();
    if (::bind(listener.get(), address_.get(), address_.length) != 0) {
      if (errno != EADDRINUSE) fail("bind");
      const descriptor holder = open_socket(SOCK_NONBLOCK);
      if (::connect(holder.get(), address_.get(), address_.length) == 0) require_same_user(holder);
      throw configuration_error("the ranks on this host cannot connect at '" + name_ +
                                "' (another job uses that name); give each job its own MUSTER_JOB");
    }
    if (::listen(listener.get(), 128) != 0) fail("listen");
    return listener;
  }

  // Waits for the next events and handles them. Returns false once all ranks are connected.
  bool accept_some(const descriptor& listener, std::vector<descriptor>& pending, std::vector<descriptor>& connections) {
    std::vector<int> missing;
    std::vector<pollfd> watched{{listener.get(), POLLIN, 0}};
    for (const auto& connection : pending) watched.push_back({connection.get(), POLLIN, 0});
    for (int rank = 1; rank < rank_count_; ++rank) {
      const auto& connection = connections[static_cast<std::size_t>(rank)];
      if (!connection) missing.push_back(rank);
      watched.push_back({connection.get(), POLLIN, 0});  // readable only when the rank ends or reports a failure
    }
    if (missing.empty()) return false;
    if (::poll(watched.data(), watched.size(), milliseconds_left(missing)) <= 0) return true;
    const std::size_t first_rank = pending.size() + 1;
    for (std::size_t i = 1; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      if (i >= first_rank) fail_without(static_cast<int>(i - first_rank) + 1, connections[i - first_rank + 1]);
      admit(pending[i - 1], connections);
    }
    std::erase_if(pending, [](const descriptor& connection) { return !connection; });
    if (watched[0].revents != 0) {
      descriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      const int code = accepted ? 0 : errno;
      if (code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM) throw system_failure("accept", code);
      if (accepted && user_of(accepted.get()) == ::getuid()) pending.push_back(std::move(accepted));
    }
    return true;
  }

  // Accepts all ranks. A connection is pending until its rank's record has arrived.
  void accept_all_ranks(std::vector<descriptor>& connections) {
    const descriptor listener = listen();
    // closed before a failure is reported, so that `accept4` has a free descriptor number
    descriptor spare(::fcntl(listener.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
    std::vector<descriptor> pending;
    try {
      while (accept_some(listener, pending, connections)) {
      }
    } catch (const error& failure) {
      spare = {};
      if (const auto* const report = dynamic_cast<const failure_report*>(&failure))
        report_failure(listener, pending, connections, record_of(*report));
      throw;
    }
    for (int receiver = 1; receiver < rank_count_; ++receiver) {
      for (int subject = 0; subject < rank_count_; ++subject) {
        if (subject != receiver) send_in_time(connections[static_cast<std::size_t>(receiver)], info(subject), receiver);
      }
    }
  }

  // Returns the record that reports the failure to another rank.
  [[nodiscard]] peer_info record_of(const failure_report& report) const {
    peer_info info;
    info.record.rank = report.failed_rank < 0 ? rank_ : report.failed_rank;
    info.record.error_code = report.error_code;
    info.record.size = report.size;
    info.record.slot = static_cast<std::uint64_t>(report.size_of_first);
    return info;
  }

  // Reports the failure to the ranks whose records have not arrived: they would otherwise wait for this rank until
  // their deadlines.
  void report_failure(const descriptor& listener, const std::vector<descriptor>& pending,
                      const std::vector<descriptor>& connections, const peer_info& report) const {
    auto missing = std::count_if(connections.begin() + 1, connections.end(),
                                 [](const descriptor& connection) { return !connection; });
    for (const auto& connection : pending) {
      if (connection && send(connection.get(), report)) --missing;
    }
    const auto until = deadline_after(shm_timing::failure_report);
    pollfd watched{listener.get(), POLLIN, 0};
    while (missing > 0 && clock::now() < until) {
      if (::poll(&watched, 1, 100) != 1) continue;
      const descriptor accepted(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (accepted && user_of(accepted.get()) == ::getuid() && send(accepted.get(), report)) --missing;
    }
  }

  // Throws the failure that the rank has reported, or peer_failure.
  [[noreturn]] static void fail_without(int rank, const descriptor& connection) {
    peer_info report;
    (void)receive(connection.get(), report);
    fail_bootstrap_without(rank);
  }

  // Sends a record to a rank, and retries until the deadline. The socket buffer of a rank that reads late is full for a
  // while. The system also limits the number of descriptors of a user that are in flight, by RLIMIT_NOFILE, whichever
  // program sent them.
  void send_in_time(const descriptor& connection, const peer_info& info, int rank) const {
    for (auto delay = first_delay; !send(connection.get(), info); delay = std::min(delay * 2, longest_delay())) {
      // The last two are errors that some versions of Linux return when the peer ends at this moment.
      if (errno == EPIPE || errno == ECONNRESET || errno == ECONNREFUSED || errno == ENOTCONN)
        fail_without(rank, connection);
      if (errno != EAGAIN && errno != ETOOMANYREFS && errno != EINTR) fail("send");
      (void)milliseconds_left({rank});
      std::this_thread::sleep_for(delay);
    }
  }

  // Receives the record of a pending connection and takes the connection. After a failure the connection stays pending,
  // so that the failure can be reported over it.
  void admit(descriptor& pending, std::vector<descriptor>& connections) {
    peer_info received;
    const bool is_complete = receive(pending.get(), received);
    const int rank = received.record.rank;
    if (is_complete && (received.record.size != rank_count_ || rank < 1 || rank >= rank_count_ || info(rank).memory))
      throw rank_of_other_job(rank, received.record.size, rank_count_);
    descriptor connection = std::move(pending);
    if (!is_complete) return;
    connections[static_cast<std::size_t>(rank)] = std::move(connection);
    info(rank) = std::move(received);
  }

  [[nodiscard]] descriptor reach_rank_0() const {
    for (auto delay = first_delay;; delay = std::min(delay * 2, longest_delay())) {
      descriptor connection = open_socket(SOCK_NONBLOCK);
      if (::connect(connection.get(), address_.get(), address_.length) == 0) {
        require_same_user(connection);
        return connection;
      }
      if (errno != ECONNREFUSED && errno != ENOENT && errno != EAGAIN && errno != EINTR) fail("connect");
      (void)milliseconds_left({0});
      std::this_thread::sleep_for(delay);
    }
  }

  void connect_to_rank_0(descriptor& connection) {
    connection = reach_rank_0();
    send_in_time(connection, info(rank_), 0);
    for (int i = 1; i < rank_count_; ++i) {
      pollfd watched{connection.get(), POLLIN, 0};
      while (::poll(&watched, 1, milliseconds_left({})) != 1) {
      }
      peer_info received;
      if (!receive(connection.get(), received))
        throw peer_failure({0}, "rank 0 failed before all ranks were connected; see the error of rank 0");
      const int rank = received.record.rank;
      if (rank < 0 || rank >= rank_count_ || info(rank).memory) {
        throw configuration_error("rank 0 at '" + name_ + "' announces a rank " + std::to_string(rank) + " of " +
                                  std::to_string(rank_count_) +
                                  " (another program listens there); give each job its own MUSTER_JOB");
      }
      info(rank) = std::move(received);
    }
  }

  const std::string& name_;
  unix_address address_;
  int rank_;
  int rank_count_;
  seconds timeout_;
  clock::time_point deadline_;
  const std::function<bool()>& is_aborted_;
  std::vector<peer_info> infos_;
};

MUSTER_INLINE void fail_bootstrap_without(int rank) {
  throw peer_failure({rank}, "rank " + std::to_string(rank) + " ended before all ranks were connected");
}

MUSTER_INLINE std::shared_ptr<shm_host> bootstrap_host(const std::string& name, int rank, int rank_count,
                                                       std::shared_ptr<segment> own, seconds timeout,
                                                       std::uint64_t slot, const std::function<bool()>& is_aborted) {
  peer_info mine;
  mine.record.rank = rank;
  mine.record.size = rank_count;
  mine.record.process = ::getpid();
  mine.record.slot = slot;
  ::sched_getaffinity(0, sizeof mine.record.cores, &mine.record.cores);
  mine.memory = descriptor(::fcntl(own->memory().file(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  mine.process_handle = descriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));  // since Linux 5.3
  if (!mine.memory) fail("dup");
  auto infos = bootstrap(name, std::move(mine), timeout, is_aborted).run();

  cpu_set_t cores{};
  std::vector<shm_host::peer> peers(infos.size());
  for (std::size_t r = 0; r < infos.size(); ++r) {
    CPU_OR(&cores, &cores, &infos[r].record.cores);
    peers[r].slot = infos[r].record.slot;
    if (static_cast<int>(r) == rank) continue;
    peers[r].memory = mapping(std::move(infos[r].memory), own->memory().reserve());
    peers[r].process_handle = std::move(infos[r].process_handle);
    peers[r].process = static_cast<pid_t>(infos[r].record.process);
  }
  return std::make_shared<shm_host>(rank, std::move(own), std::move(peers), cores_of(cores));
}

}}}  // namespace muster::v0::detail
