// CIFAR-10 and CIFAR-100 in their binary form (https://www.cs.toronto.edu/~kriz/cifar.html).
#pragma once

#include <string>

#include <muster/data/sources/fixed_records.hpp>

namespace muster { inline namespace v0 {

/// Which images of CIFAR.
enum class cifar_split { train, test };
/// Which of the two labels of a CIFAR-100 image: one of 100 classes, one of 20 groups of them, or both, in this order.
enum class cifar100_labels { fine, coarse, both };

/// Opens CIFAR-10: records are uint8[3x32x32] named "image", red, green and blue planes, with one label, 0 to 9. `path`
/// is a folder with data_batch_1.bin to data_batch_5.bin and test_batch.bin (or with a folder cifar-10-batches-bin that
/// has them), or one file of that form. Throws data_error for a file that is missing, has a size that is no number of
/// records, or a label above 9, which it gives with its place.
[[nodiscard]] fixed_records open_cifar10(const std::string& path, cifar_split split = cifar_split::train);

/// Opens CIFAR-100: as CIFAR-10, from train.bin and test.bin (or cifar-100-binary/), with labels 0 to 99 and 0 to 19.
[[nodiscard]] fixed_records open_cifar100(const std::string& path, cifar_split split = cifar_split::train,
                                          cifar100_labels labels = cifar100_labels::fine);

}}  // namespace muster::v0
