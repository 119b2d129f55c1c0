#include "replica_node.hpp"

#include <poll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include <muster/comm/rendezvous/host_identity.hpp>
#include <muster/core/error.hpp>
#include <muster/core/hash.hpp>
#include <muster/core/log.hpp>

#include "../net/store_guest.hpp"

namespace muster::inline v0::detail {
namespace {

constexpr std::chrono::milliseconds for_goodbyes{200};
constexpr std::chrono::milliseconds for_a_knock{50};
constexpr std::chrono::seconds between_tries_in{1};     // of a member, to hold a place
constexpr std::chrono::milliseconds between_tries{10};  // of one that is not in yet
constexpr std::size_t most_strangers = 512;
constexpr std::size_t most_places_of_a_card = 4;

clock::duration in_clock(seconds span) { return std::chrono::duration_cast<clock::duration>(span); }

replica_policy policy_of(const embedded_store_options& options) {
  replica_policy made;
  made.beat = in_clock(options.beat);
  made.silence = options.missed_beats * made.beat;
  made.silence_here = 4 * made.silence;
  return made;
}

replica_member drawn_member(const embedded_store_options& options) {
  replica_member made;
  while (made.id == 0) fill_random(std::as_writable_bytes(std::span(&made.id, 1)));
  if (life(process_identity::own()).file() < 0) return made;  // nobody sees here how a process ends
  const auto host = options.host.empty() ? host_identity(settings()) : options.host;
  made.host = digest().add("host of a store").add(host).add(process_numbers()).value() | 1;
  return made;
}

}  // namespace

// ---- how a member is reached ----

std::string replica_card::encode() const {
  std::string text =
      std::to_string(process.process) + " " + std::to_string(process.started) + " " + std::to_string(port);
  for (const auto& one : hosts) text += " " + one;
  return text;
}

replica_card replica_card::decode(std::string_view text) {
  std::istringstream words{std::string(text)};
  replica_card read;
  words >> read.process.process >> read.process.started >> read.port;
  for (std::string word; words >> word;) read.hosts.push_back(word);
  return read;
}

std::vector<address> replica_card::places(bool here) const {
  std::vector<address> all;
  const auto add = [&](const std::string& host) {
    const auto found =
        address::parse((host.find(':') != std::string::npos ? "[" + host + "]:" : host + ":") + std::to_string(port));
    if (!found.empty() && all.size() < most_places_of_a_card) all.push_back(found);
  };
  if (here) add("127.0.0.1");
  for (const auto& one : hosts) add(one);
  return all;
}

// ---- the rank's side ----

replica_node::replica_node(std::string_view places, const embedded_store_options& options)
    : store_calls("embedded://" + std::string(places)),
      options_(options),
      secret_(std::array<std::string_view, 2>{"embedded store", options.token}),
      self_(drawn_member(options)),
      door_(tcp_socket::listen(address::any(0))),
      bell_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      replica_(
          [&] {
            card_.process = process_identity::own();
            card_.port = door_.local().port();
            for (const auto& one : own_addresses(options.interface, "the interface of an embedded store"))
              card_.hosts.push_back(one.host());
            self_.card = card_.encode();
            return self_;
          }(),
          policy_of(options), clock::now()) {
  if (!bell_) throw error(error_kind::other, "no descriptor is left for the store " + where() + "; close some files");
  for (std::string_view rest = places;;) {
    const auto comma = rest.find(',');
    place one;
    one.text = rest.substr(0, comma);
    one.addresses = resolve(parse_host_port(one.text, "the place of an embedded store"));
    const auto own = std::find_if(one.addresses.begin(), one.addresses.end(), is_own);
    if (own != one.addresses.end()) one.own = *own;
    places_.push_back(std::move(one));
    if (comma == std::string_view::npos) break;
    rest.remove_prefix(comma + 1);
  }
  thread_ = std::thread([this] { run(); });
}

replica_node::~replica_node() {
  stopping_ = true;
  ring();
  thread_.join();
}

void replica_node::await_membership(clock::time_point until) {
  std::unique_lock held(mutex_);
  joined_.wait_until(held, until, [this] { return is_in_ || !refused_.empty() || is_lost(); });
  if (is_in_ && !is_lost()) return;
  if (!refused_.empty()) {
    throw configuration_error("whoever listens at " + refused_ +
                              " does not know this job's token (it is of another job, or no store of muster); give all "
                              "processes the same MUSTER_TOKEN, or choose another port");
  }
  throw timeout_error("opening the store", {},
                      "the store " + where() +
                          " did not come together in time (it begins at the first of its places, with more than half "
                          "of the " +
                          std::to_string(options_.of) +
                          " processes of the job); see whether a process runs there, or raise --timeout / "
                          "MUSTER_TIMEOUT");
}

void replica_node::ask(const store_request& asked) {
  std::string frame;
  append_frame(frame, asked);
  asked_.push_back(std::move(frame));
  ring();
}

void replica_node::ring() const noexcept {
  const std::uint64_t one = 1;
  (void)!::write(bell_.get(), &one, sizeof one);
}

// ---- the thread ----

void replica_node::run() noexcept {
  std::string why = "this process has closed it";
  try {
    const auto usual = std::min(in_clock(options_.beat) / 2, clock::duration(std::chrono::milliseconds(50)));
    while (!stopping_) {
      const auto tick = replica_.is_member() ? usual : clock::duration(between_tries);
      wait(ticked_ == clock::time_point{} ? clock::duration{} : std::min(tick, until_keeping()));
      const auto now = clock::now();
      advance(now);
      if (now - ticked_ >= tick) {
        ticked_ = now;
        doors_rest_ = false;
        replica_.tick(now);
        look_for_places(now);
      }
      carry_out(now);
      const std::lock_guard held(mutex_);
      keep_leases(now);
      if (is_lost()) break;
      if (!is_in_ && replica_.is_member()) {
        is_in_ = true;
        joined_.notify_all();
      }
    }
    if (stopping_) say_goodbye();
  } catch (const std::exception& failed) {
    why = failed.what();
    log(log_level::error, "this process carries the store " + where() + " no more (" + why + ")");
  }
  lines_.clear();
  places_.clear();
  door_ = {};
  const std::lock_guard held(mutex_);
  lose(why);
  joined_.notify_all();
}

// Until a lease is to be kept.
clock::duration replica_node::until_keeping() const {
  const std::lock_guard held(mutex_);
  return std::max(next_keeping() - clock::now(), clock::duration{});
}

void replica_node::wait(clock::duration most) {
  std::vector<pollfd> watched{{bell_.get(), POLLIN, 0}};
  if (!doors_rest_) {
    watched.push_back({door_.file(), POLLIN, 0});
    for (const auto& one : places_) {
      if (one.door) watched.push_back({one.door.file(), POLLIN, 0});
    }
  }
  const auto first_life = watched.size();
  for (const auto& [id, its] : lives_) watched.push_back({its.file(), POLLIN, 0});
  const auto after_lives = watched.size();
  for (const auto& one : lines_) {
    const auto events = static_cast<short>(POLLIN | (one.line.wants_to_write() ? POLLOUT : 0));
    if (one.line.file() >= 0) watched.push_back({one.line.file(), events, 0});
  }
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(most).count();
  if (::poll(watched.data(), watched.size(), static_cast<int>(limit)) < 0 && errno != EINTR)
    throw socket_error(errno, "poll failed");
  std::uint64_t rung = 0;
  if (watched[0].revents != 0) (void)!::read(bell_.get(), &rung, sizeof rung);
  for (auto i = first_life; i < after_lives; ++i) ends_ = ends_ || watched[i].revents != 0;
}

void replica_node::advance(clock::time_point now) {
  std::vector<std::string> asked;
  {
    const std::lock_guard held(mutex_);
    asked.swap(asked_);
  }
  for (const auto& frame : asked) {
    if (const auto request = parse_request(first_frame(frame).body)) replica_.call(now, *request);
  }
  watch_lives(now);
  if (!doors_rest_) {
    welcome(door_, now);
    for (const auto& one : places_) {
      if (one.door) welcome(one.door, now);
    }
  }
  for (auto& one : lines_) {
    one.line.advance(now, [&](const replica_message& said) { replica_.hear(now, one.line.other()->id, said); });
    if (one.line.now() == replica_line::state::standing && one.place >= 0 && !one.met) {
      one.met = true;
      if (one.line.other()->id != self_.id) replica_.meet(*one.line.other());
    }
  }
  sweep(now);
}

void replica_node::welcome(const tcp_socket& door, clock::time_point now) {
  try {
    for (int i = 0; i < 64; ++i) {
      auto came = door.accept();
      if (!came) return;
      const auto is_stranger = [](const connection& one) {
        return !one.line.is_outgoing() && one.line.now() == replica_line::state::opening;
      };
      if (static_cast<std::size_t>(std::count_if(lines_.begin(), lines_.end(), is_stranger)) >= most_strangers)
        lines_.erase(std::find_if(lines_.begin(), lines_.end(), is_stranger));
      lines_.push_back({replica_line(std::move(came), self_, secret_, now), {}, -1, true});
    }
  } catch (const socket_error& failed) {
    if (failed.code() != ECONNRESET && failed.code() != EINVAL) doors_rest_ = true;  // until the next tick
  }
}

// What has become of connections.
void replica_node::sweep(clock::time_point now) {
  for (auto at = lines_.begin(); at != lines_.end();) {
    const auto& line = at->line;
    const bool to_itself = line.other() && line.other()->id == self_.id;
    const bool is_over = line.now() == replica_line::state::refused || line.now() == replica_line::state::ended;
    if (!is_over && !to_itself) {
      ++at;
      continue;
    }
    if (at->place >= 0) count_refusals(places_[static_cast<std::size_t>(at->place)], line.was_turned_away());
    if (!to_itself && line.other()) {
      replica_.lost(now, line.other()->id);
    } else if (at->to) {
      if (line.now() == replica_line::state::refused && is_here(*at->to)) {
        replica_.prove_dead(now, at->to->id);  // on this host a process that carries the store listens
      } else {
        replica_.lost(now, at->to->id);
      }
    }
    at = lines_.erase(at);
  }
}

void replica_node::count_refusals(place& one, bool turned_away) {
  one.turned_away = turned_away ? one.turned_away + 1 : 0;
  if (one.turned_away < closings_of_a_stranger || replica_.is_member()) return;
  const std::lock_guard held(mutex_);
  refused_ = one.text;
  joined_.notify_all();
}

// One that is not in looks for the others; the leader looks for those that are not in.
void replica_node::look_for_places(clock::time_point now) {
  const bool is_in = replica_.is_member();
  if (now - looked_ < (is_in ? in_clock(options_.beat) : clock::duration(between_tries))) return;
  looked_ = now;
  // Who held a place may be gone when members are; of others one hears only by trying.
  const bool may_hold = !is_in || now - tried_ >= between_tries_in;
  if (may_hold) tried_ = now;
  for (auto& one : places_) {
    if (!one.own.empty() && !one.door && may_hold) hold(one, now);
  }
  if (is_in && !replica_.leads()) return;
  for (std::size_t i = 0; i < places_.size(); ++i) {
    if (!is_in && i != next_place_ % places_.size()) continue;
    if (places_[i].door) continue;
    const auto there = std::find_if(lines_.begin(), lines_.end(),
                                    [&](const connection& one) { return one.place == static_cast<int>(i); });
    if (there == lines_.end()) {
      lines_.push_back({replica_line(places_[i].addresses, 0, self_, secret_, now), {}, static_cast<int>(i), false});
    } else if (there->line.other()) {
      replica_.meet(*there->line.other());
    }
  }
  ++next_place_;
}

void replica_node::hold(place& one, clock::time_point now) {
  try {
    one.door = tcp_socket::listen(one.own);
    if (&one == &places_.front()) replica_.found(now, options_.of);
  } catch (const socket_error&) {  // another process of this host holds it
  }
}

void replica_node::watch_lives(clock::time_point now) {
  const auto& view = replica_.view();
  if (lives_of_ != view.number) {
    lives_of_ = view.number;
    ends_ = true;
    tried_ = {};
    log(log_level::debug, "the store " + where() + " is carried by " + std::to_string(view.members.size()) +
                              " processes" + (replica_.leads() ? ", and led by this one" : ""));
    std::erase_if(lives_, [&](const auto& one) { return !view.has(one.first); });
    auto all = view.before;
    all.push_back(view.members);
    for (const auto& members : all) {
      for (const auto& one : members) {
        const auto card = replica_card::decode(one.card);
        if (is_here(one) && card.process.process != card_.process.process) lives_.try_emplace(one.id, card.process);
      }
    }
  }
  if (!std::exchange(ends_, false)) return;
  for (auto at = lives_.begin(); at != lives_.end();) {
    if (!at->second.ended()) {
      ++at;
      continue;
    }
    replica_.prove_dead(now, at->first);
    looked_ = tried_ = {};  // its place is to be held
    at = lives_.erase(at);
  }
}

// ---- what the replica wants ----

void replica_node::carry_out(clock::time_point now) {
  for (auto actions = replica_.take(); !actions.empty(); actions = replica_.take()) {
    for (const auto& one : actions) {
      std::visit([&](const auto& a) { perform(a, now); }, one);
    }
  }
}

void replica_node::perform(const replica_act::send& a, clock::time_point now) {
  const auto is_for = [&](const connection& one) {
    const bool lasts =
        one.line.now() == replica_line::state::opening || one.line.now() == replica_line::state::standing;
    return lasts && (one.line.other() ? one.line.other()->id : one.line.wanted()) == a.to.id;
  };
  auto there = std::find_if(lines_.begin(), lines_.end(), is_for);
  if (there == lines_.end()) {
    if (a.to.card.empty()) return;  // it has gone
    const auto places = replica_card::decode(a.to.card).places(is_here(a.to));
    lines_.push_back({replica_line(places, a.to.id, self_, secret_, now), a.to, -1, true});
    there = std::prev(lines_.end());
  }
  there->line.send(a.what);
}

void replica_node::perform(const replica_act::answer& a, clock::time_point) {
  const auto said = parse_reply(a.reply);
  const std::lock_guard held(mutex_);
  if (said) take(*said);
}

void replica_node::perform(const replica_act::kill& a, clock::time_point now) {
  const auto card = replica_card::decode(a.who.card);
  if (card.process.process == card_.process.process) return replica_.cannot_kill(a.who.id);
  try {  // of this host: the answer is there at once
    (void)tcp_socket::connect(card.places(true), now + for_a_knock);
  } catch (const socket_error& failed) {
    if (failed.code() == ECONNREFUSED)
      return replica_.prove_dead(now, a.who.id);  // it has closed the store, and may live on
  }
  log(log_level::warning, "process " + std::to_string(card.process.process) +
                              " of this host is killed (it carries the store " + where() +
                              ", is silent, and the others go on without it)");
  life(card.process).kill();
}

void replica_node::perform(const replica_act::end&, clock::time_point) {
  const std::lock_guard held(mutex_);
  leave_behind();
}

void replica_node::say_goodbye() {
  replica_.leave();
  const auto until = clock::now() + for_goodbyes;
  carry_out(clock::now());
  for (auto now = clock::now(); now < until; now = clock::now()) {
    const bool is_done =
        std::none_of(lines_.begin(), lines_.end(),
                     [](const connection& one) {
                       return one.line.is_outgoing() && one.to && one.line.now() == replica_line::state::opening;
                     }) &&
        std::none_of(lines_.begin(), lines_.end(), [](const connection& one) {
          return one.line.now() == replica_line::state::standing && one.line.wants_to_write();
        });
    if (is_done) break;
    wait(std::chrono::milliseconds(5));
    for (auto& one : lines_) one.line.advance(clock::now(), [](const replica_message&) {});
  }
  for (auto& one : lines_) one.line.close();
}

}  // namespace muster::inline v0::detail
