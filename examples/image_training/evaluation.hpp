// How good a model is on images it was not trained on.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include <muster/comm/group.hpp>
#include <muster/data/loader.hpp>

#include "loss.hpp"
#include "network.hpp"

namespace images {

/// Gives the logits of so many images, valid until the next call.
using predictor = std::function<std::span<const float>(std::span<const float> images, std::size_t count)>;
/// That of a network on the host, which outlives it.
predictor predictor_of(nn::network<float>& net);

/// Collective: goes through all images of `from`, of which each rank takes its slice, and adds up what all found. The
/// model is the same at every rank.
nn::totals evaluate(muster::group& ranks, const predictor& model, std::size_t classes, muster::loader& from);

/// Collective: the running statistics of every rank become the mean over the ranks, so that all have one model.
void average_statistics(muster::group& ranks, nn::network<float>& net);

/// Collective: a rank that joined has seen nothing yet, and takes the mean of the others' running statistics.
void share_statistics(muster::group& ranks, nn::network<float>& net, bool joined);

}  // namespace images
