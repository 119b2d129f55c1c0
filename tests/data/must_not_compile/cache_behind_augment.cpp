// A cache behind a random step would give every epoch the chance of the first one: the compiler says so. With
// CACHE_FIRST the steps are in the right order, and it compiles.
#include <muster/data/cifar.hpp>
#include <muster/data/image.hpp>
#include <muster/data/pipeline.hpp>

auto make() {
#ifdef CACHE_FIRST
  return muster::open_cifar10(".") | muster::shuffle(1) | muster::batch(256) | muster::cache(muster::in_memory) |
         muster::augment(muster::crop_flip);
#else
  return muster::open_cifar10(".") | muster::shuffle(1) | muster::batch(256) | muster::augment(muster::crop_flip) |
         muster::cache(muster::in_memory);
#endif
}
