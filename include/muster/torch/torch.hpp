// Data parallelism for models in LibTorch: all headers of muster::torch. Link muster::torch (docs/libtorch.md).
#pragma once

#include <muster/torch/data_parallel.hpp>
#include <muster/torch/dataset.hpp>
#include <muster/torch/optimizer.hpp>
#include <muster/torch/sync_batch_norm.hpp>
#include <muster/torch/tensors.hpp>
