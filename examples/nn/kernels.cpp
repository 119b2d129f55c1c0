#include "kernels.hpp"

#include <muster/core/error.hpp>
#include <string>

namespace nn {

extern const kernel_set<float> portable_float;
extern const kernel_set<double> portable_double;
#ifdef NN_WIDE_KERNELS
extern const kernel_set<float> avx2_float, avx512_float;
extern const kernel_set<double> avx2_double, avx512_double;
#endif

namespace {

template <class T>
struct candidates;
template <>
struct candidates<float> {
  static std::vector<const kernel_set<float>*> all() {
    std::vector<const kernel_set<float>*> found;
#ifdef NN_WIDE_KERNELS
    if (__builtin_cpu_supports("avx512f") != 0) found.push_back(&avx512_float);
    if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) found.push_back(&avx2_float);
#endif
    found.push_back(&portable_float);
    return found;
  }
};
template <>
struct candidates<double> {
  static std::vector<const kernel_set<double>*> all() {
    std::vector<const kernel_set<double>*> found;
#ifdef NN_WIDE_KERNELS
    if (__builtin_cpu_supports("avx512f") != 0) found.push_back(&avx512_double);
    if (__builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0) found.push_back(&avx2_double);
#endif
    found.push_back(&portable_double);
    return found;
  }
};

}  // namespace

template <class T>
const kernel_set<T>& find_kernels(std::string_view name) {
  const auto all = candidates<T>::all();
  if (name.empty()) return *all.front();
  std::string known;
  for (const auto* const set : all) {
    if (set->name == name) return *set;
    known += (known.empty() ? "" : ", ") + std::string(set->name);
  }
  throw muster::configuration_error("there are no kernels '" + std::string(name) + "' (this processor has " + known +
                                    "); use a known name");
}

std::vector<std::string_view> kernel_names() {
  std::vector<std::string_view> names;
  for (const auto* const set : candidates<float>::all()) names.push_back(set->name);
  return names;
}

template const kernel_set<float>& find_kernels<float>(std::string_view);
template const kernel_set<double>& find_kernels<double>(std::string_view);

}  // namespace nn
