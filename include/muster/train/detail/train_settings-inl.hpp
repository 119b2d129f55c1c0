#pragma once

#include <muster/train/train_settings.hpp>

#include <muster/core/inline.hpp>
#include <muster/core/plugin.hpp>

namespace muster { inline namespace v0 {
namespace setting {

inline constexpr setting_info optimizer{
    "optimizer", "NAME", "sgd",
    "optimizer of the training: sgd, momentum:M, nesterov:M, adam, adamw, lars[:M], "
    "adagrad, each with ,decay=D and other options"};
inline constexpr setting_info trace{"trace", "FILE", "none",
                                    "write a timeline of phases, buckets and collectives of all ranks to this file"};
inline constexpr setting_info metrics{
    "metrics", "FILE", "none", "write the figures up to now to this file at the end of each epoch, for Prometheus"};
inline constexpr setting_info tensorboard{
    "tensorboard", "FOLDER", "none",
    "write the figures of each epoch into an event file in this folder, for TensorBoard"};

inline constexpr setting_info balance{"balance", "WHAT", "equal",
                                      "how ranks share each batch: equal parts, or by speed, as their steps show it"};
inline constexpr setting_info virtual_shards{
    "virtual-shards", "N", "0",
    "cut each batch into N parts that are summed in one order: the same bits for any "
    "number of ranks; 0: off",
    detail::value_range(0, 4096)};
inline constexpr setting_info reproducible{"reproducible", "WHEN", "off",
                                           "on or off: sum the gradients of the ranks exactly: the same bits with "
                                           "every algorithm, transport and size of bucket"};

inline void register_settings_of_train() {
  detail::register_settings(
      {"train", "training", {&optimizer, &balance, &virtual_shards, &reproducible, &trace, &metrics, &tensorboard}});
}

}  // namespace setting

namespace detail {

extern const plugin train_plugin;
[[gnu::init_priority(101)]] MUSTER_INLINE const plugin train_plugin("train", &setting::register_settings_of_train);

}  // namespace detail
}}  // namespace muster::v0
