#include "watch.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <muster/core/log.hpp>

#include "mesh.hpp"

namespace muster::inline v0::detail {
namespace {

// What an abort needs is a few hundred bytes; a peer that takes none of it is about to be lost.
constexpr std::size_t most_unsent = std::size_t{1} << 20;
constexpr std::size_t most_unsent_of_no_matter = std::size_t{64} << 10;

// A stream of data that broke, or another rank's loss, may be the end of a rank whose last words are still to be read.
constexpr std::chrono::milliseconds for_last_notices{50};

}  // namespace

tcp_watch::tcp_watch(tcp_mesh& mesh, std::vector<tcp_peer> peers, std::vector<tcp_socket> doors,
                     const job_secret& secret)
    : mesh_(mesh),
      plan_(mesh.plan_),
      rank_(mesh.rank_),
      peers_(std::move(peers)),
      doors_(std::move(doors)),
      secret_(secret),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      pairs_(peers_.size()),
      lines_(peers_.size()),
      troubles_(peers_.size()) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "no eventfd for a thread");
  thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
}

tcp_watch::~tcp_watch() {
  thread_.request_stop();
  wake();
}

// ---- from other threads ----

void tcp_watch::wake() noexcept {
  const std::uint64_t one = 1;
  (void)!::write(wake_.get(), &one, sizeof one);
}

std::string tcp_watch::trouble_with(int peer) {
  const std::lock_guard lock(orders_mutex_);
  return troubles_[static_cast<std::size_t>(peer)];
}

void tcp_watch::want(int peer, clock::time_point until) {
  {
    const std::lock_guard lock(orders_mutex_);
    orders_.push_back({peer, {}, until});
  }
  wake();
}

void tcp_watch::report(int peer, const std::string& why) {
  {
    const std::lock_guard lock(orders_mutex_);
    orders_.push_back({peer, why});
  }
  wake();
}

void tcp_watch::post(int peer, frame head, std::span<const std::byte> payload, bool matters) {
  head.total = head.bytes = payload.size();
  const auto header = encode(head);
  bool unsent = false;
  {
    const std::lock_guard lock(lines_mutex_);
    line& to = line_of(peer);
    if (to.out.size() > (matters ? most_unsent : most_unsent_of_no_matter)) return;
    to.out.insert(to.out.end(), header.begin(), header.end());
    to.out.insert(to.out.end(), payload.begin(), payload.end());
    if (to.socket) flush(to);
    unsent = !to.out.empty();
  }
  if (unsent) wake();
}

void tcp_watch::say_goodbye(clock::time_point until) {
  frame last;
  last.kind = frame_kind::goodbye;
  for (std::size_t peer = 0; peer < lines_.size(); ++peer) {
    {
      const std::lock_guard lock(lines_mutex_);
      if (!lines_[peer].socket) continue;
    }
    post(static_cast<int>(peer), last, {}, true);
  }
  // Taken by the other side's system: then the end of this process takes nothing of it away.
  const auto all_written = [&] {
    const std::lock_guard lock(lines_mutex_);
    return std::all_of(lines_.begin(), lines_.end(), [&](line& one) {
      if (!one.socket) return true;
      flush(one);
      return one.out.empty() && !has_unsent_bytes(one.socket.file());
    });
  };
  while (!all_written() && clock::now() < until) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

// ---- the thread ----

void tcp_watch::run(const std::stop_token& stop) {
  std::vector<pollfd> files;
  last_turn_ = next_beat_ = clock::now();
  while (!stop.stop_requested()) {
    gather(files);
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(next_event() - clock::now()).count();
    ::poll(files.data(), files.size(), static_cast<int>(std::clamp<long long>(left, 0, 60000)));
    try {
      // What has been waiting for this thread, not for its sender, is no silence.
      const auto now = clock::now();
      const auto away = now - last_turn_;
      last_turn_ = now;
      if (away > 2 * std::chrono::duration_cast<clock::duration>(plan_.beat)) {
        for (auto& one : lines_) one.heard = now;
      }
      take_orders();
      if (now >= doors_open_) answer_doors();
      for (auto& one : greetings_) {
        if (!one.over) advance(one);
      }
      std::erase_if(greetings_, [](const greeting& one) { return one.over; });
      const std::size_t first = files.size() - polled_.size();
      for (std::size_t i = 0; i < polled_.size(); ++i) {
        if (files[first + i].revents != 0 && line_of(polled_[i]).socket) listen(polled_[i]);
      }
      expire(now);
      if (now >= next_beat_) beat();
    } catch (const std::exception& trouble) {
      log(log_level::error, std::string("the thread that watches the peers met: ") + trouble.what());
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
}

void tcp_watch::gather(std::vector<pollfd>& files) {
  files.clear();
  files.push_back({wake_.get(), POLLIN, 0});
  if (clock::now() >= doors_open_) {
    for (const auto& door : doors_) files.push_back({door.file(), POLLIN, 0});
  }
  for (const auto& one : greetings_) {
    if (!one.socket) continue;
    const bool out = one.connecting || one.talk.now() == handshake::state::sending;
    files.push_back({one.socket.file(), static_cast<short>(out ? POLLOUT : POLLIN), 0});
  }
  polled_.clear();
  const std::lock_guard lock(lines_mutex_);
  for (std::size_t peer = 0; peer < lines_.size(); ++peer) {
    const line& one = lines_[peer];
    if (!one.socket) continue;
    files.push_back({one.socket.file(), static_cast<short>(POLLIN | (one.out.empty() ? 0 : POLLOUT)), 0});
    polled_.push_back(static_cast<int>(peer));
  }
}

clock::time_point tcp_watch::next_event() const {
  auto next = std::max(next_beat_, last_turn_);
  for (const auto& one : greetings_) {
    next = std::min(next, one.socket ? one.until : one.retry);
  }
  for (const auto& one : lines_) next = std::min(next, one.condemned);
  return next;
}

void tcp_watch::take_orders() {
  std::uint64_t count = 0;
  (void)!::read(wake_.get(), &count, sizeof count);
  std::vector<order> orders;
  {
    const std::lock_guard lock(orders_mutex_);
    orders.swap(orders_);
  }
  for (const auto& what : orders) {
    if (!what.broken.empty()) {
      if (pair(what.peer).now == stage::up) condemn(what.peer, what.broken, -1);  // else it is seen already
    } else if (what.until != clock::time_point::max()) {
      dial_again(what.peer, what.until);
    } else {
      dial(what.peer);
    }
  }
}

// What this rank saw itself counts for more than what it was told.
void tcp_watch::condemn(int peer, const std::string& why, int witness) {
  line& of = line_of(peer);
  const bool is_new = of.condemned == clock::time_point::max();
  if (of.goodbye || (!is_new && (witness >= 0 || of.witness < 0))) return;
  if (is_new) of.condemned = clock::now() + for_last_notices;
  of.verdict = why;
  of.witness = witness;
}

// ---- signs of life ----

void tcp_watch::beat() {
  const auto now = clock::now();
  next_beat_ += std::chrono::duration_cast<clock::duration>(plan_.beat);
  if (next_beat_ < now) next_beat_ = now + std::chrono::duration_cast<clock::duration>(plan_.beat);
  mesh_.tick();
  frame sign = mesh_.position();
  sign.kind = frame_kind::beat;
  for (std::size_t peer = 0; peer < lines_.size(); ++peer) {
    if (lines_[peer].socket) post(static_cast<int>(peer), sign, {}, false);
  }
}

void tcp_watch::flush(line& one) {
  if (one.out.empty()) return;
  try {
    const iovec piece{one.out.data(), one.out.size()};
    const std::size_t n = one.socket.try_write({&piece, 1});
    one.out.erase(one.out.begin(), one.out.begin() + static_cast<std::ptrdiff_t>(n));
  } catch (const socket_error&) {  // what there is to be seen of it the thread sees by reading
    one.out.clear();
  }
}

void tcp_watch::listen(int peer) {
  line& of = line_of(peer);
  {
    const std::lock_guard lock(lines_mutex_);
    flush(of);
  }
  try {
    for (;;) {
      std::byte bytes[4096];
      const auto n = of.socket.try_read(bytes);
      if (!n) return;
      if (*n == 0) {
        const bool broke = of.condemned != clock::time_point::max() && of.witness < 0;
        if (!of.goodbye) return lose(peer, broke ? of.verdict : "its connection ended");
        const std::lock_guard lock(lines_mutex_);
        of.socket = {};
        return;
      }
      of.heard = clock::now();
      of.in.insert(of.in.end(), bytes, bytes + *n);
      std::size_t used = 0;
      while (of.in.size() - used >= frame_bytes) {
        frame head;
        const auto fault = decode(std::span<const std::byte, frame_bytes>(of.in.data() + used, frame_bytes), head);
        if (fault != frame_fault::none || head.kind < frame_kind::goodbye)
          return lose(peer, "it sent what is no frame of muster: " + std::string(to_string(fault)));
        if (of.in.size() - used < frame_bytes + head.bytes) break;
        hear(peer, head, std::span(of.in).subspan(used + frame_bytes, static_cast<std::size_t>(head.bytes)));
        used += frame_bytes + static_cast<std::size_t>(head.bytes);
      }
      of.in.erase(of.in.begin(), of.in.begin() + static_cast<std::ptrdiff_t>(used));
    }
  } catch (const socket_error& broken) {
    if (of.goodbye) {
      const std::lock_guard lock(lines_mutex_);
      of.socket = {};
      return;
    }
    lose(peer, broken.closed()      ? "its connection was reset"
               : broken.timed_out() ? "its host does not answer"
                                    : broken.what());
  }
}

void tcp_watch::hear(int peer, const frame& head, std::span<const std::byte> payload) {
  switch (head.kind) {
    case frame_kind::beat: {
      notice where;
      where.what = notice::kind::position;
      where.mark = head.mark;
      return mesh_.hear_notice(peer, head, where);
    }
    case frame_kind::notice: {
      notice message;
      if (!decode_notice(head, payload, message)) return;
      return mesh_.hear_notice(peer, head, message);
    }
    case frame_kind::leave:
      return mesh_.hear_leave(peer, head.generation, head.number());
    case frame_kind::suspect:
      if (head.number() >= lines_.size() || static_cast<int>(head.number()) == rank_) return;
      return condemn(static_cast<int>(head.number()),
                     std::string(reinterpret_cast<const char*>(payload.data()), payload.size()), peer);
    case frame_kind::goodbye:
      line_of(peer).goodbye = true;
      line_of(peer).condemned = clock::time_point::max();
      return mesh_.left(peer);
    default:
      return;
  }
}

// It is gone, and all are told. What stood may be connected again; what could not be connected is gone for good.
void tcp_watch::lose(int peer, const std::string& why) {
  {
    const std::lock_guard lock(lines_mutex_);
    line& of = line_of(peer);
    of.socket = {};
    of.in.clear();
    of.out.clear();
    of.condemned = clock::time_point::max();
  }
  abandon(peer, pair(peer).now == stage::up ? stage::broken : stage::failed);
  frame word;
  word.kind = frame_kind::suspect;
  word.set_number(static_cast<std::uint64_t>(peer));
  const std::string_view text = std::string_view(why).substr(0, 300);
  for (std::size_t other = 0; other < lines_.size(); ++other) {
    if (static_cast<int>(other) != peer && lines_[other].socket)
      post(static_cast<int>(other), word, std::as_bytes(std::span(text)), true);
  }
  mesh_.lose(peer, why, -1);
}

void tcp_watch::expire(clock::time_point now) {
  for (auto& one : greetings_) {
    if (one.over || !one.socket || now < one.until) continue;
    drop(one, "it did not answer in time");
  }
  std::erase_if(greetings_, [](const greeting& one) { return one.over; });
  const auto silence = std::chrono::duration_cast<clock::duration>(plan_.beat * plan_.missed);
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    const int peer = static_cast<int>(i);
    line& of = lines_[i];
    if (now >= of.condemned && of.witness >= 0) {
      of.condemned = clock::time_point::max();
      mesh_.lose(peer, of.verdict, of.witness);
    } else if (now >= of.condemned) {
      lose(peer, of.verdict);
    } else if (of.socket && !of.goodbye && now - of.heard > silence) {
      const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(silence).count();
      lose(peer, "no heartbeat for " + std::to_string(milliseconds) + " ms");
    }
    pairing& between = pairs_[i];
    const bool waits = between.now == stage::dialing || between.now == stage::answering;
    if (!waits || now < between.until) continue;
    const std::string span = std::to_string(static_cast<int>(plan_.patience.count())) + " s";
    lose(peer, "it could not be connected " + (between.again ? "again" : "in " + span) +
                   (between.trouble.empty() ? "" : ": " + between.trouble));
  }
}

}  // namespace muster::inline v0::detail
