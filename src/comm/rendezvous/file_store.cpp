#include <muster/comm/rendezvous/file_store.hpp>

#include <poll.h>
#include <sys/inotify.h>
#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "folder.hpp"

namespace muster::inline v0 {
namespace {

// What the holder of a lease has of it; its file is touched by the heart.
struct held_lease {
  held_lease(detail::descriptor opened, seconds lives) : file(std::move(opened)), ttl(lives) {}

  // Touches the file; false when the others have counted the lease as ended, and removed it.
  bool touch() {
    const auto now = clock::now();
    struct stat status {};
    const bool there = ::futimens(file.get(), nullptr) == 0 && ::fstat(file.get(), &status) == 0 && status.st_nlink > 0;
    if (there) good_until = now + lifetime();
    return there;
  }
  [[nodiscard]] clock::duration lifetime() const { return std::chrono::duration_cast<clock::duration>(ttl); }

  detail::descriptor file;
  seconds ttl;
  std::atomic<bool> held = true;
  std::atomic<clock::time_point> good_until{};
};

// What tells of changes in a folder (inotify). To close one takes the system tens of milliseconds, so they are kept for
// the next who waits.
class listeners {
 public:
  explicit listeners(std::string folder) : folder_(std::move(folder)) {}

  detail::descriptor take() {
    {
      const std::lock_guard held(mutex_);
      if (!idle_.empty()) {
        detail::descriptor one = std::move(idle_.back());
        idle_.pop_back();
        return one;
      }
    }
    detail::descriptor made(::inotify_init1(IN_NONBLOCK | IN_CLOEXEC));          // or none: a user has 128 of them
    constexpr std::uint32_t changes = IN_MOVED_TO | IN_DELETE | IN_CLOSE_WRITE;  // the last: the holder of a lease died
    if (made && ::inotify_add_watch(made.get(), folder_.c_str(), changes) < 0) return {};
    return made;
  }
  void give_back(detail::descriptor one) {
    const std::lock_guard held(mutex_);
    idle_.push_back(std::move(one));
  }

 private:
  std::string folder_;
  std::mutex mutex_;
  std::vector<detail::descriptor> idle_;
};

// Sleeps until something in the folder may have changed. What the system tells is a hint alone, because it does not
// tell of other hosts: one looks again and again anyway, a little less often each time.
class change_hint {
 public:
  explicit change_hint(listeners& from) : from_(from) {}
  change_hint(const change_hint&) = delete;
  change_hint& operator=(const change_hint&) = delete;
  ~change_hint() {
    if (events_) from_.give_back(std::move(events_));
  }

  void wait(clock::time_point until) {
    if (nap_ > soon_over && !tried_) {
      tried_ = true;
      events_ = from_.take();
      return;  // to look once more, at what came before it listened
    }
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(until - clock::now());
    pollfd watched{events_.get(), POLLIN, 0};  // poll passes over a file of -1
    if (::poll(&watched, 1, static_cast<int>(std::clamp(left, least, nap_).count())) > 0) {
      alignas(inotify_event) char room[4096];
      while (::read(events_.get(), room, sizeof room) > 0) {
      }
      nap_ = least;
    } else {
      nap_ = std::min(2 * nap_, most);
    }
  }

 private:
  static constexpr std::chrono::milliseconds least{1};
  static constexpr std::chrono::milliseconds soon_over{8};  // until then it is cheaper to look than to listen
  static constexpr std::chrono::milliseconds most{50};

  listeners& from_;
  detail::descriptor events_;
  bool tried_ = false;
  std::chrono::milliseconds nap_ = least;
};

}  // namespace

struct file_store::implementation {
  implementation(const std::string& path, clock::time_point until) : folder(path, until), changes(path) {}
  ~implementation() {
    {
      const std::lock_guard held(mutex);
      stopping = true;
    }
    woken.notify_all();
    if (heart.joinable()) heart.join();
    for (const auto& [id, lease] : leases) end(id, *lease);
  }

  [[nodiscard]] std::string where() const { return "file:" + folder.path(); }

  detail::store_folder::writer lock(const char* call, std::string_view key, clock::time_point until) {
    auto right = folder.lock(until);
    if (!right) detail::store_timed_out(call, key, where());
    return std::move(*right);
  }

  // The entry as it is when nobody else writes.
  store_entry settled(detail::store_folder::writer& right, std::string_view key) {
    auto found = folder.read(key);
    if (!found) return {};
    if (found->lease != 0) {
      const auto life = folder.look_at(found->lease);
      if (life == detail::store_folder::life::silent) folder.bury(right, found->lease);
      if (life != detail::store_folder::life::alive) return {};
    }
    return std::move(found->entry);
  }

  void require_lease(detail::store_folder::writer& right, std::uint64_t id) {
    const auto life = folder.look_at(id);
    if (life == detail::store_folder::life::alive) return;
    if (life == detail::store_folder::life::silent) folder.bury(right, id);
    throw store_lease_ended("a lease at the store " + where() +
                            " has ended (its holder was silent for longer than it lives, or let it go); begin anew");
  }

  void end(std::uint64_t id, held_lease& lease) noexcept {
    lease.held = false;
    try {
      if (auto right = folder.lock(deadline_after(seconds(2)))) folder.bury(*right, id);
    } catch (const error&) {  // it ends by its holder's silence
    }
    lease.file = {};
  }

  // Keeps the leases alive, four times in the shortest time-to-live.
  void beat() {
    std::unique_lock held(mutex);
    while (!stopping) {
      seconds shortest(60);
      for (const auto& [id, lease] : leases) {
        if (!lease->touch()) lease->held = false;
        shortest = std::min(shortest, lease->ttl);
      }
      woken.wait_until(held, deadline_after(shortest / 4));
    }
  }

  detail::store_folder folder;
  listeners changes;
  std::mutex mutex;
  std::condition_variable woken;
  std::map<std::uint64_t, std::shared_ptr<held_lease>> leases;
  bool stopping = false;
  std::thread heart;
};

file_store::file_store(std::string folder, clock::time_point until)
    : self_(std::make_shared<implementation>(folder, until)) {}
file_store::file_store(file_store&&) noexcept = default;
file_store::~file_store() = default;

std::string file_store::where() const { return self_->where(); }

store_entry file_store::get(std::string_view key, clock::time_point until) {
  detail::check_store_key(key, where());
  using life = detail::store_folder::life;
  auto& folder = self_->folder;
  for (std::optional<std::uint64_t> gone;;) {
    auto found = folder.read(key);
    if (!found) return {};
    if (found->lease == 0) return std::move(found->entry);
    // There was no such entry if its lease had ended while its file was still there, unchanged.
    if (gone == found->entry.version) return {};
    switch (folder.look_at(found->lease)) {
      case life::alive:
        return std::move(found->entry);
      case life::ended:
        gone = found->entry.version;
        break;
      case life::silent: {
        auto right = self_->lock("get", key, until);
        return self_->settled(right, key);
      }
    }
  }
}

store_swap file_store::compare_and_swap(std::string_view key, std::uint64_t expected,
                                        std::optional<std::string_view> value, clock::time_point until,
                                        std::uint64_t lease) {
  detail::check_store_key(key, where());
  detail::check_store_value(value, where());
  auto right = self_->lock("compare_and_swap", key, until);
  if (value && lease != 0) self_->require_lease(right, lease);
  auto there = self_->settled(right, key);
  if (there.version != expected) return {false, std::move(there)};
  if (!value) {
    self_->folder.remove(right, key);
    return {true, {}};
  }
  return {true, {self_->folder.write(right, key, *value, lease), {}}};
}

std::optional<store_entry> file_store::watch(std::string_view key, std::uint64_t known, clock::time_point until) {
  for (change_hint changes(self_->changes);;) {
    auto found = get(key, until);
    if (found.version != known) return found;
    if (clock::now() >= until) return std::nullopt;
    changes.wait(until);
  }
}

store_lease file_store::lease(seconds ttl, clock::time_point until) {
  class holder final : public store_lease::holder {
   public:
    holder(std::weak_ptr<implementation> store, std::uint64_t id, std::shared_ptr<held_lease> lease)
        : store_(std::move(store)), id_(id), lease_(std::move(lease)) {}
    ~holder() override {
      const auto open = store_.lock();
      if (!open) return;  // it ended as the store was closed
      {
        const std::lock_guard held(open->mutex);
        if (open->leases.erase(id_) == 0) return;
      }
      open->end(id_, *lease_);
    }
    [[nodiscard]] std::uint64_t id() const noexcept override { return id_; }
    [[nodiscard]] bool held() const noexcept override {
      return lease_->held && clock::now() < lease_->good_until.load();
    }

   private:
    std::weak_ptr<implementation> store_;
    std::uint64_t id_;
    std::shared_ptr<held_lease> lease_;
  };

  detail::check_store_ttl(ttl, where());
  auto right = self_->lock("lease", {}, until);
  const auto begun = clock::now();
  auto [id, file] = self_->folder.grant(right, ttl);
  auto made = std::make_shared<held_lease>(std::move(file), ttl);
  made->good_until = begun + made->lifetime();
  const std::lock_guard held(self_->mutex);
  self_->leases.emplace(id, made);
  if (!self_->heart.joinable()) self_->heart = std::thread([store = self_.get()] { store->beat(); });
  self_->woken.notify_all();
  return store_lease(std::make_unique<holder>(self_, id, std::move(made)));
}

}  // namespace muster::inline v0
