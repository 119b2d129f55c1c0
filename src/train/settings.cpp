#include <muster/train/settings.hpp>

namespace muster::inline v0::setting {

constexpr setting_info optimizer{
    "optimizer", "NAME", "sgd",
    "of programs that train: sgd, momentum:M, nesterov:M, adam, adamw, lars[:M], adagrad; ,decay=D and more behind "
    "it"};
constexpr setting_info trace{"trace", "FILE", "none",
                             "write a timeline of phases, buckets and collectives of all ranks there"};

extern "C" {
bool muster_settings_of_train = detail::register_settings({"train", "training", {&optimizer, &trace}});
}

}  // namespace muster::inline v0::setting
