// The coroutine of a collective: written as a plain sequence of sends and receives, and advanced by the thread that
// waits for the collective or by the progress thread.
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

namespace muster { inline namespace v0 {

namespace detail {

/// Memory of a group for objects that live as long as a collective: coroutine frames, operations. Released blocks
/// return to a list of their size and are used again, so that a repeated collective allocates nothing. Used by one
/// thread at a time.
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

  /// Returns a block that stores its pool, so that `release` needs no other argument.
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
    const tag owner = *static_cast<tag*>(block);
    if (owner.index < owner.pool->free_.size()) {
      owner.pool->free_[owner.index].push_back(block);
    } else {
      ::operator delete(block);
    }
  }

 private:
  struct tag {
    frame_pool* pool;
    std::size_t index;
  };
  static constexpr std::size_t header = 16;    // bytes before each block, for its tag
  static constexpr std::size_t granule = 128;  // block sizes are multiples, in bytes
  static_assert(sizeof(tag) <= header);

  std::array<std::vector<void*>, 32> free_;
};

/// Runs a coroutine and the coroutines that it awaits; their frames are allocated from a pool.
class coroutine_scheduler {
 public:
  explicit coroutine_scheduler(frame_pool& pool) noexcept : pool_(pool) {}
  coroutine_scheduler(const coroutine_scheduler&) = delete;
  coroutine_scheduler& operator=(const coroutine_scheduler&) = delete;

  [[nodiscard]] frame_pool& pool() noexcept { return pool_; }

  /// Suspends the coroutine until `ready()` is true: `co_await d.until(ready)`. The scheduler polls `ready()`, which
  /// must not wait.
  template <std::predicate<> Ready>
  [[nodiscard]] auto until(Ready ready) noexcept {
    struct awaiter {
      coroutine_scheduler* d;
      Ready ready;
      bool await_ready() { return ready(); }
      void await_suspend(std::coroutine_handle<> suspended) noexcept {
        d->suspend(suspended, this, [](void* self) { return static_cast<awaiter*>(self)->ready(); });
      }
      void await_resume() const noexcept {}
    };
    return awaiter{this, std::move(ready)};
  }

  void start(std::coroutine_handle<> first) noexcept { suspended_ = first; }
  /// Runs the coroutine as far as possible without waiting; returns true if it has advanced. Throws the exception of a
  /// condition.
  bool advance() {
    bool moved = false;
    while (suspended_) {
      if (awaited_ != nullptr && !is_ready_(awaited_)) break;
      awaited_ = nullptr;
      std::exchange(suspended_, nullptr).resume();
      moved = true;
    }
    return moved;
  }

 protected:
  void suspend(std::coroutine_handle<> suspended, void* awaited, bool (*is_ready)(void*)) noexcept {
    awaited_ = awaited;
    is_ready_ = is_ready;
    suspended_ = suspended;
  }

 private:
  frame_pool& pool_;
  void* awaited_ = nullptr;
  bool (*is_ready_)(void*) = nullptr;
  std::coroutine_handle<> suspended_;
};

}  // namespace detail

/// The state that the coroutines of a collective share: the transport, the signature in all their messages, and the
/// condition that they wait for.
class collective_context : public detail::coroutine_scheduler {
 public:
  /// Runs among all ranks of the transport. The signature outlives this object.
  collective_context(transport& over, detail::frame_pool& pool, std::vector<buffer<std::byte>>& scratch,
                     const collective_signature& signature)
      : detail::coroutine_scheduler(pool),
        transport_(over),
        scratch_(scratch),
        signature_(signature),
        rank_(over.rank()),
        size_(over.size()) {}
  /// Runs among `members` alone: some ranks of the transport, in an order of their own in which this rank has the
  /// number `rank`. The signature and the members outlive this object.
  collective_context(transport& over, detail::frame_pool& pool, std::vector<buffer<std::byte>>& scratch,
                     const collective_signature& signature, std::span<const int> members, int rank)
      : detail::coroutine_scheduler(pool),
        transport_(over),
        scratch_(scratch),
        signature_(signature),
        members_(members),
        rank_(rank),
        size_(static_cast<int>(members.size())) {}

  /// Returns this rank's number among the ranks of the collective.
  [[nodiscard]] int rank() const noexcept { return rank_; }
  /// Returns the number of ranks of the collective.
  [[nodiscard]] int size() const noexcept { return size_; }
  /// Returns the abilities of the transport.
  [[nodiscard]] transport_abilities abilities() const { return transport_.abilities(); }

  /// Starts to send `bytes` bytes to `peer`. The request and the data must live until `test` or `done` reports the end.
  void send(request& req, int peer, const std::byte* data, std::size_t bytes) {
    req.data = const_cast<std::byte*>(data);  // a send only reads the buffer
    set_arguments(req, peer, bytes);
    transport_.send(req);
  }

  /// Starts to receive `bytes` bytes from `peer`. With `reduce`, the message is combined with `data`.
  void receive(request& req, int peer, std::byte* data, std::size_t bytes, const reduction* reduce = nullptr) {
    req.data = data;
    req.combine = reduce;
    req.incoming_first = peer < rank();
    set_arguments(req, peer, bytes);
    transport_.receive(req);
  }
  /// Combines `data` with the peer's message; the value of the lower rank is the left operand.
  void receive_combine(request& req, int peer, std::byte* data, std::size_t bytes, const reduction& reduce) {
    receive(req, peer, data, bytes, &reduce);
  }

  /// Sends: `co_await ctx.send_to(peer, data)` resumes when the message is sent.
  [[nodiscard]] auto send_to(int peer, std::span<const std::byte> data) {
    return transfer<1>(*this, [&](request* sending) { send(*sending, peer, data.data(), data.size()); });
  }
  /// Receives: `co_await ctx.receive_from(peer, data)` resumes when the message has arrived. With `reduce`, the message
  /// is combined with `data`.
  [[nodiscard]] auto receive_from(int peer, std::span<std::byte> data, const reduction* reduce = nullptr) {
    return transfer<1>(*this, [&](request* receiving) { receive(*receiving, peer, data.data(), data.size(), reduce); });
  }
  /// Sends and receives at the same time: `co_await ctx.exchange(receiver, out, sender, in)`.
  [[nodiscard]] auto exchange(int receiver, std::span<const std::byte> out, int sender, std::span<std::byte> in,
                              const reduction* reduce = nullptr) {
    return transfer<2>(*this, [&](request* both) {
      receive(both[0], sender, in.data(), in.size(), reduce);
      send(both[1], receiver, out.data(), out.size());
    });
  }

  /// Makes progress; returns true when the request is done.
  bool test(request& req) { return transport_.test(req); }
  /// Returns true if a request is known to be done, without a call to its transport, which may be a system call. A
  /// transport that advances all outstanding requests at once has updated this one when another was tested.
  [[nodiscard]] static bool is_over(const request& req) noexcept { return req.owning_transport() == nullptr; }

  /// Returns the algorithm that the cost model selects for a collective of `bytes` bytes among these ranks.
  [[nodiscard]] algorithm choose(collective kind, std::size_t bytes) const {
    return muster::choose(kind, bytes, size(), abilities().costs);
  }

  /// Starts `call` as a native collective of the transport. Returns false if the transport has none for `call`.
  bool native(const collective_call& call, request& req) { return transport_.native(call, req); }

  /// Returns memory of at least `bytes` bytes with undefined content, another block at each call of a collective. The
  /// group keeps the blocks for later collectives, and a block grows to the largest requested size.
  [[nodiscard]] std::byte* scratch(std::size_t bytes) {
    if (scratch_used_ == scratch_.size()) scratch_.emplace_back();
    auto& memory = scratch_[scratch_used_++];
    if (memory.size() < bytes) memory = buffer<std::byte>(bytes);
    return memory.data();
  }

  /// Waits: `co_await ctx.done(r)` resumes when the request is done.
  [[nodiscard]] auto done(request& req) noexcept {
    return until([this, &req] { return transport_.test(req); });
  }

 private:
  // Messages that are awaited in the expression that starts them.
  template <std::size_t count>
  struct transfer {
    template <class Start>
    transfer(collective_context& context, Start start) : ctx(context) {
      start(moving);
    }
    bool await_ready() {
      while (done < count && ctx.test(moving[done])) ++done;
      return done == count;
    }
    void await_suspend(std::coroutine_handle<> suspended) noexcept {
      ctx.suspend(suspended, this, [](void* self) { return static_cast<transfer*>(self)->await_ready(); });
    }
    void await_resume() const noexcept {}

    collective_context& ctx;
    request moving[count];
    std::size_t done = 0;
  };

  void set_arguments(request& req, int peer, std::size_t bytes) {
    req.bytes = bytes;
    req.peer = members_.empty() ? peer : members_[static_cast<std::size_t>(peer)];
    req.signature = signature_;
  }

  transport& transport_;
  std::vector<buffer<std::byte>>& scratch_;
  std::size_t scratch_used_ = 0;
  const collective_signature& signature_;
  std::span<const int> members_;
  int rank_;
  int size_;
};

/// A coroutine of a scheduler. It starts when it is awaited or passed to `coroutine_scheduler::start`; destroying it
/// cancels the requests that it has started.
class [[nodiscard]] task {
 public:
  /// The promise of the coroutine, as C++20 requires it. The compiler calls its functions.
  struct promise_type {
    /// The coroutine that awaits this coroutine, resumed at the end. By default nothing is resumed.
    std::coroutine_handle<> continuation = std::noop_coroutine();
    /// The exception that ended the coroutine; null if there is none.
    std::exception_ptr failure;

    /// Returns the task of this coroutine. The compiler calls this function and the next functions.
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

    /// Allocates the frame. The first parameter of every coroutine is its collective_context or another scheduler, and
    /// the frame is allocated from the pool of the group.
    template <class... Others>
    static void* operator new(std::size_t size, detail::coroutine_scheduler& d, const Others&...) {
      return d.pool().take(size);
    }
    static void operator delete(void* frame, std::size_t) noexcept { detail::frame_pool::release(frame); }
  };

  task() = default;
  /// Takes the coroutine of `other`, which is empty afterwards.
  task(task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  task& operator=(task&& other) noexcept {
    if (this != &other) {
      reset();
      handle_ = std::exchange(other.handle_, nullptr);
    }
    return *this;
  }
  ~task() { reset(); }

  /// Destroys the coroutine.
  void reset() noexcept {
    if (handle_) std::exchange(handle_, nullptr).destroy();
  }

  /// Returns the handle of the coroutine, for `coroutine_scheduler::start`.
  [[nodiscard]] std::coroutine_handle<> handle() const noexcept { return handle_; }
  /// Returns true if the coroutine has ended.
  [[nodiscard]] bool finished() const noexcept { return handle_.done(); }
  /// Returns the exception that ended the coroutine; null if there is none.
  [[nodiscard]] std::exception_ptr failure() const noexcept { return handle_.promise().failure; }

  /// Runs a subtask to its end: `co_await subtask;` throws the exception of the subtask.
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

}}  // namespace muster::v0

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/comm/detail/definitions.hpp>
#endif
