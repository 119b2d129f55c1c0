// A block of device threads, run one after the other on the processor. Each thread has its own context, and a
// thread that waits for others yields. Includes the two instructions of matrix units, with the register layout of the
// PTX manual.
#pragma once

#include <setjmp.h>
#include <ucontext.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#pragma GCC diagnostic ignored "-Wclobbered"  // no local that is read after longjmp is changed after setjmp

namespace nn::device::emulated {

struct alignas(16) vector_16 {
  std::uint32_t x, y, z, w;
};

struct thread_state {
  unsigned thread, threads, block_x, block_y, grid_x;
  ucontext_t context{};  // starts the thread
  jmp_buf place{};       // resumes the thread; swapcontext would query signals from the kernel each time
  bool entered = false;
  std::size_t block_waits = 0, warp_waits = 0;  // number of arrivals at each barrier
  bool done = false;
  const unsigned char* row = nullptr;  // row that the thread provides to its warp
  std::uint32_t a[4]{}, b[2]{};
};

inline thread_local std::vector<thread_state>* block = nullptr;
inline thread_local thread_state* running = nullptr;
inline thread_local jmp_buf scheduler;
inline thread_local unsigned char* block_memory = nullptr;
inline thread_local const std::function<void()>* body = nullptr;

inline thread_state& self() { return *running; }
inline unsigned char* memory() { return block_memory; }
inline thread_state& lane(unsigned k) { return (*block)[self().thread / 32 * 32 + k]; }

/// Waits until all threads of [first, first + count) have arrived as often.
inline void wait_for(std::size_t thread_state::*waits, unsigned first, unsigned count) {
  const std::size_t mine = ++(self().*waits);
  const auto all_there = [&] {
    for (unsigned k = first; k < first + count; ++k) {
      if ((*block)[k].*waits < mine && !(*block)[k].done) return false;
    }
    return true;
  };
  while (!all_there()) {
    if (_setjmp(self().place) == 0) _longjmp(scheduler, 1);
  }
}
inline void wait_for_block() { wait_for(&thread_state::block_waits, 0, self().threads); }
inline void wait_for_warp() { wait_for(&thread_state::warp_waits, self().thread / 32 * 32, 32); }

inline void enter() {
  (*body)();
  running->done = true;
  _longjmp(scheduler, 1);
}

/// Runs a thread until it waits or ends.
inline void resume(thread_state& thread) {
  running = &thread;
  if (_setjmp(scheduler) != 0) return;
  if (std::exchange(thread.entered, true)) _longjmp(thread.place, 1);
  setcontext(&thread.context);
}

/// Runs `kernel` for each thread in each block. Shared memory starts with garbage, and so does the memory after it.
inline void run(int blocks_x, int blocks_y, int threads, int bytes, const std::function<void()>& kernel) {
  constexpr std::size_t margin = 256;  // bytes after the requested memory, which the kernel must not change
  std::vector<vector_16> shared((static_cast<std::size_t>(bytes) + 15) / 16 + margin);
  block_memory = reinterpret_cast<unsigned char*>(shared.data());
  body = &kernel;
  constexpr std::size_t stack_size = std::size_t{64} << 10;
  // stacks of a block's threads, kept for the next block
  static thread_local std::vector<std::unique_ptr<char[]>> stacks;
  while (stacks.size() < static_cast<std::size_t>(threads)) stacks.emplace_back(new char[stack_size]);
  for (int y = 0; y < blocks_y; ++y) {
    for (int x = 0; x < blocks_x; ++x) {
      std::memset(shared.data(), 0xff, shared.size() * sizeof(vector_16));  // NaNs
      std::vector<thread_state> all(static_cast<std::size_t>(threads));
      block = &all;
      for (unsigned k = 0; k < all.size(); ++k) {
        auto& state = all[k];
        state.thread = k;
        state.threads = static_cast<unsigned>(threads);
        state.block_x = static_cast<unsigned>(x);
        state.block_y = static_cast<unsigned>(y);
        state.grid_x = static_cast<unsigned>(blocks_x);
        getcontext(&state.context);
        state.context.uc_stack.ss_sp = stacks[k].get();
        state.context.uc_stack.ss_size = stack_size;
        makecontext(&state.context, enter, 0);
      }
      for (bool any = true; any;) {
        any = false;
        for (auto& state : all) {
          if (state.done) continue;
          any = true;
          resume(state);
        }
      }
      for (std::size_t k = shared.size() - margin; k < shared.size(); ++k) {
        if (shared[k].x == 0xffffffffu) continue;
        std::fprintf(stderr, "a kernel writes %zu bytes beyond its %d bytes of shared memory\n",
                     (k - shared.size() + margin) * 16, bytes);
        std::abort();
      }
    }
  }
}

inline std::uint32_t bits_of(float value) { return std::bit_cast<std::uint32_t>(value); }
inline float float_of(std::uint32_t bits) { return std::bit_cast<float>(bits); }
/// Rounds to nearest, halves away from zero, to 10 bits of mantissa.
inline std::uint32_t to_tf32(float value) { return (bits_of(value) + 0x1000u) & 0xffffe000u; }

/// Emulates ldmatrix.x4: register i of lane t is word t % 4 of row t / 4 of matrix i; lanes 8 i + r provide its rows.
/// Transposed, it has the 16-bit elements (2 (t % 4), t / 4) and (2 (t % 4) + 1, t / 4).
inline void load_matrices(std::uint32_t (&to)[4], const unsigned char* row, bool transposed) {
  self().row = row;
  wait_for_warp();
  const unsigned t = self().thread % 32;
  for (unsigned i = 0; i < 4; ++i) {
    if (!transposed) {
      std::memcpy(&to[i], lane(8 * i + t / 4).row + t % 4 * 4, 4);
      continue;
    }
    std::uint16_t two[2];
    for (unsigned k = 0; k < 2; ++k) std::memcpy(&two[k], lane(8 * i + t % 4 * 2 + k).row + t / 4 * 2, 2);
    to[i] = two[0] | static_cast<std::uint32_t>(two[1]) << 16;
  }
  wait_for_warp();
}

/// Emulates mma.m16n8k8 of 4-byte elements, or m16n8k16 of 2-byte elements: each register holds 4 / Bytes neighbours in
/// a row of A, or in a column of B.
template <unsigned Bytes>
void multiply(float (&sum)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  std::memcpy(self().a, a, sizeof a);
  self().b[0] = b0;
  self().b[1] = b1;
  wait_for_warp();
  constexpr unsigned each = 4 / Bytes;
  const auto part = [](std::uint32_t word, unsigned k) {
    if (each == 1) return float_of(word & 0xffffe000u);
    return float_of(k == 0 ? word << 16 : word & 0xffff0000u);
  };
  const unsigned t = self().thread % 32;
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = t / 4 + i / 2 * 8, column = t % 4 * 2 + i % 2;
    float all = 0;
    for (unsigned k = 0; k < 8 * each; ++k) {
      const unsigned group = k / each;  // word of the register
      const float left = part(lane(row % 8 * 4 + group % 4).a[row / 8 + 2 * (group / 4)], k % each);
      const float right = part(lane(column * 4 + group % 4).b[group / 4], k % each);
      all += left * right;
    }
    sum[i] += all;
  }
  wait_for_warp();
}

}  // namespace nn::device::emulated
