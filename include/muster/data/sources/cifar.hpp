// CIFAR-10 and CIFAR-100 in their binary format (https://www.cs.toronto.edu/~kriz/cifar.html).
#pragma once

#include <string>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 { namespace data {

/// The set of CIFAR images to open.
enum class cifar_split { train, test };
/// The labels of a CIFAR-100 image: its class (of 100), its group of classes (of 20), or both, in this order.
enum class cifar100_labels { fine, coarse, both };

/// Opens CIFAR-10. Records are uint8[3x32x32] named "image", with red, green and blue planes, and one label from 0 to
/// 9. `path` is a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (or with a folder
/// cifar-10-batches-bin that contains them), or a single file in this format. Throws data_error for a missing file, a
/// file whose size is not a whole number of records, or a label above 9, with its place.
[[nodiscard]] fixed_records open_cifar10(const std::string& path, cifar_split split = cifar_split::train);

/// Opens CIFAR-100 in the same way, from train.bin or test.bin, in the folder or in its folder cifar-100-binary. Each
/// record has the label "fine" (0 to 99), the label "coarse" (0 to 19), or both, as `labels` requests.
[[nodiscard]] fixed_records open_cifar100(const std::string& path, cifar_split split = cifar_split::train,
                                          cifar100_labels labels = cifar100_labels::fine);

}}}  // namespace muster::v0::data

#if !defined(MUSTER_COMPILED) && __INCLUDE_LEVEL__ == 1
#include <muster/data/detail/definitions.hpp>
#endif
