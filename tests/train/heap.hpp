// Memory for arenas in tests without a context.
#pragma once

#include <muster/train/arena.hpp>

struct heap {
  template <class T>
  muster::buffer<T> allocate(std::size_t size) {
    return muster::buffer<T>(size);
  }
};
static_assert(muster::arena_memory<heap>);
