// The coroutine that a collective is: written as a plain sequence of sends and receives, driven by any free thread.
#pragma once

#include <array>
#include <concepts>
#include <coroutine>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include <muster/comm/algorithms/chooser.hpp>
#include <muster/comm/transport.hpp>
#include <muster/core/buffer.hpp>

namespace muster { inline namespace v0 { namespace detail {

/// Memory of one group for what lives as long as a collective: coroutine frames, operations. Blocks go back to a list
/// of their size and are used again, so that a collective that ran before allocates nothing. Used by one thread at a
/// time.
class frame_pool {
 public:
  frame_pool() = default;
  frame_pool(const frame_pool&) = delete;
  frame_pool& operator=(const frame_pool&) = delete;
  ~frame_pool() {
    for (auto& list : free_) {
      for (void* block : list) ::operator delete(block);
    }
  }

  /// A block that knows its pool, so that `release` needs nothing else.
  [[nodiscard]] void* take(std::size_t size) {
    const std::size_t index = (size + header + granule - 1) / granule;
    void* block = nullptr;
    if (index < free_.size() && !free_[index].empty()) {
      block = free_[index].back();
      free_[index].pop_back();
    } else {
      block = ::operator new(index* granule);
      if (index < free_.size()) free_[index].reserve(free_[index].capacity() + 1);  // so that release cannot throw
    }
    ::new (block) tag{this, index};
    return static_cast<std::byte*>(block) + header;
  }

  static void release(void* memory) noexcept {
    void* const block = static_cast<std::byte*>(memory) - header;
    const tag from = *static_cast<tag*>(block);
    if (from.index < from.pool->free_.size()) {
      from.pool->free_[from.index].push_back(block);
    } else {
      ::operator delete(block);
    }
  }

 private:
  struct tag {
    frame_pool* pool;
    std::size_t index;
  };
  static constexpr std::size_t header = 16;
  static constexpr std::size_t granule = 128;
  static_assert(sizeof(tag) <= header);

  std::array<std::vector<void*>, 32> free_;
};

/// Drives a coroutine and those that it awaits; their frames come from a pool.
class driver {
 public:
  explicit driver(frame_pool& pool) noexcept : pool_(pool) {}
  driver(const driver&) = delete;
  driver& operator=(const driver&) = delete;

  [[nodiscard]] frame_pool& pool() noexcept { return pool_; }

  /// `co_await d.until(ready)`: goes on when `ready()` is true. It is asked again and again and does not wait.
  template <std::predicate<> Ready>
  [[nodiscard]] auto until(Ready ready) noexcept {
    struct awaiter {
      driver* d;
      Ready ready;
      bool await_ready() { return ready(); }
      void await_suspend(std::coroutine_handle<> at) noexcept {
        d->suspend(at, this, [](void* self) { return static_cast<awaiter*>(self)->ready(); });
      }
      void await_resume() const noexcept {}
    };
    return awaiter{this, std::move(ready)};
  }

  void start(std::coroutine_handle<> first) noexcept { resume_at_ = first; }
  /// Runs on as far as it goes without waiting; true if it went anywhere. Throws what a condition throws.
  bool advance() {
    bool moved = false;
    while (resume_at_) {
      if (awaited_ != nullptr && !is_ready_(awaited_)) break;
      awaited_ = nullptr;
      std::exchange(resume_at_, nullptr).resume();
      moved = true;
    }
    return moved;
  }

 protected:
  void suspend(std::coroutine_handle<> at, void* awaited, bool (*is_ready)(void*)) noexcept {
    awaited_ = awaited;
    is_ready_ = is_ready;
    resume_at_ = at;
  }

 private:
  frame_pool& pool_;
  void* awaited_ = nullptr;
  bool (*is_ready_)(void*) = nullptr;
  std::coroutine_handle<> resume_at_;
};

/// What the coroutines of a collective over messages share: the transport, the signature of all their messages, what
/// they wait for.
class executor : public driver {
 public:
  /// Among all ranks of the transport, or among `members` alone: those of its ranks, in an order of their own in which
  /// this rank has the number `rank`. The signature and the members live as long as this.
  executor(transport& over, frame_pool& pool, std::vector<buffer<std::byte>>& scratch,
           const collective_signature& signature)
      : driver(pool), over_(over), scratch_(scratch), signature_(signature), rank_(over.rank()), size_(over.size()) {}
  executor(transport& over, frame_pool& pool, std::vector<buffer<std::byte>>& scratch,
           const collective_signature& signature, std::span<const int> members, int rank)
      : driver(pool),
        over_(over),
        scratch_(scratch),
        signature_(signature),
        members_(members),
        rank_(rank),
        size_(static_cast<int>(members.size())) {}

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] transport_abilities abilities() const { return over_.abilities(); }

  void send(request& r, int peer, const std::byte* data, std::size_t bytes) {
    r.data = const_cast<std::byte*>(data);  // a send only reads it
    ask(r, peer, bytes);
    over_.send(r);
  }

  void receive(request& r, int peer, std::byte* data, std::size_t bytes, const reduction* how = nullptr) {
    r.data = data;
    r.combine = how;
    r.incoming_first = peer < rank();
    ask(r, peer, bytes);
    over_.receive(r);
  }
  /// data = data combined with what the peer sends; the value of the lower rank is the left operand.
  void receive_combine(request& r, int peer, std::byte* data, std::size_t bytes, const reduction& how) {
    receive(r, peer, data, bytes, &how);
  }

  /// `co_await f.send_to(peer, data)`: goes on when it is sent.
  [[nodiscard]] auto send_to(int peer, std::span<const std::byte> data) {
    return transfer<1>(*this, [&](request* one) { send(*one, peer, data.data(), data.size()); });
  }
  /// `co_await f.receive_from(peer, data)`: goes on when it has come; with `how`, it is combined with what is there.
  [[nodiscard]] auto receive_from(int peer, std::span<std::byte> data, const reduction* how = nullptr) {
    return transfer<1>(*this, [&](request* one) { receive(*one, peer, data.data(), data.size(), how); });
  }
  /// `co_await f.exchange(to, out, from, in)`: both at the same time.
  [[nodiscard]] auto exchange(int to, std::span<const std::byte> out, int from, std::span<std::byte> in,
                              const reduction* how = nullptr) {
    return transfer<2>(*this, [&](request* both) {
      receive(both[0], from, in.data(), in.size(), how);
      send(both[1], to, out.data(), out.size());
    });
  }

  /// Makes progress; true when the request is done.
  bool test(request& r) { return over_.test(r); }
  /// Whether a request is known to be done without asking its transport, which for some is a call to the system: those
  /// that move all that is under way at once have seen to it when another was tested.
  [[nodiscard]] static bool is_over(const request& r) noexcept { return r.held_by() == nullptr; }

  [[nodiscard]] algorithm choose(collective kind, std::size_t bytes) const {
    return muster::choose(kind, bytes, size(), abilities().costs);
  }

  bool native(const collective_call& call, request& r) { return over_.native(call, r); }

  /// Memory for this collective, kept by the group for the next ones: it grows to the largest that was asked for.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
    auto& memory = scratch_[scratch_used_++];
    if (memory.size() < bytes) memory = buffer<std::byte>(bytes);
    return memory.data();
  }

  /// `co_await f.done(r)`: goes on when the request is done.
  [[nodiscard]] auto done(request& r) noexcept {
    return until([this, &r] { return over_.test(r); });
  }

 private:
  // Messages that are awaited where they are started.
  template <std::size_t count>
  struct transfer {
    template <class Start>
    transfer(executor& by, Start start) : f(by) {
      start(moving);
    }
    bool await_ready() {
      while (done < count && f.test(moving[done])) ++done;
      return done == count;
    }
    void await_suspend(std::coroutine_handle<> at) noexcept {
      f.suspend(at, this, [](void* self) { return static_cast<transfer*>(self)->await_ready(); });
    }
    void await_resume() const noexcept {}

    executor& f;
    request moving[count];
    std::size_t done = 0;
  };

  void ask(request& r, int peer, std::size_t bytes) {
    r.bytes = bytes;
    r.peer = members_.empty() ? peer : members_[static_cast<std::size_t>(peer)];
    r.signature = signature_;
  }

  transport& over_;
  std::vector<buffer<std::byte>>& scratch_;
  std::size_t scratch_used_ = 0;
  const collective_signature& signature_;
  std::span<const int> members_;
  int rank_;
  int size_;
};

/// A coroutine of a driver. It starts when it is awaited or given to `driver::start`; destroying it takes back the
/// requests it has started.
class [[nodiscard]] task {
 public:
  struct promise_type {
    std::coroutine_handle<> continuation = std::noop_coroutine();
    std::exception_ptr failure;

    task get_return_object() noexcept { return task(std::coroutine_handle<promise_type>::from_promise(*this)); }
    std::suspend_always initial_suspend() const noexcept { return {}; }
    auto final_suspend() const noexcept {
      struct awaiter {
        bool await_ready() const noexcept { return false; }
        std::coroutine_handle<> await_suspend(std::coroutine_handle<promise_type> self) const noexcept {
          return self.promise().continuation;
        }
        void await_resume() const noexcept {}
      };
      return awaiter{};
    }
    void return_void() const noexcept {}
    void unhandled_exception() noexcept { failure = std::current_exception(); }

    // Every coroutine's first parameter is its driver, or executor; the frame comes from the pool of its group.
    template <class... Others>
    static void* operator new(std::size_t size, driver& d, const Others&...) {
      return d.pool().take(size);
    }
    static void operator delete(void* frame, std::size_t) noexcept { frame_pool::release(frame); }
  };

  task() = default;
  task(task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~task() { reset(); }

  void reset() noexcept {
    if (handle_) std::exchange(handle_, nullptr).destroy();
  }

  [[nodiscard]] std::coroutine_handle<> handle() const noexcept { return handle_; }
  [[nodiscard]] bool finished() const noexcept { return handle_.done(); }
  /// What it ended with, if it threw.
  [[nodiscard]] std::exception_ptr failure() const noexcept { return handle_.promise().failure; }

  /// `co_await subtask;` runs it to its end and throws what it threw.
  [[nodiscard]] auto operator co_await() const noexcept {
    struct awaiter {
      std::coroutine_handle<promise_type> sub;
      bool await_ready() const noexcept { return false; }
      std::coroutine_handle<> await_suspend(std::coroutine_handle<> caller) const noexcept {
        sub.promise().continuation = caller;
        return sub;
      }
      void await_resume() const {
        if (sub.promise().failure) std::rethrow_exception(sub.promise().failure);
      }
    };
    return awaiter{handle_};
  }

 private:
  explicit task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}

  std::coroutine_handle<promise_type> handle_;
};

}}}  // namespace muster::v0::detail
