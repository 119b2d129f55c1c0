#include <muster/train/settings.hpp>

namespace muster::inline v0::setting {

constexpr setting_info optimizer{"optimizer", "NAME", "sgd",
                                 "optimizer of the training: sgd, momentum:M, nesterov:M, adam, adamw, lars[:M], "
                                 "adagrad, each with ,decay=D and other options"};
constexpr setting_info trace{"trace", "FILE", "none",
                             "write a timeline of phases, buckets and collectives of all ranks to this file"};

extern "C" {
bool muster_settings_of_train = detail::register_settings({"train", "training", {&optimizer, &trace}});
}

}  // namespace muster::inline v0::setting
