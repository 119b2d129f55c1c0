// The accuracy of a model on images outside its training set.
#pragma once

#include <cstddef>
#include <functional>
#include <span>

#include <muster/comm/group.hpp>
#include <muster/data/loader.hpp>

#include "loss.hpp"
#include "network.hpp"

namespace images {

/// A function that returns the logits of a number of images, valid until the next call.
using predictor = std::function<std::span<const float>(std::span<const float> images, std::size_t count)>;
/// Returns the predictor of a network on the host, which must outlive the predictor.
predictor predictor_of(nn::network<float>& net);

/// Evaluates all images in `from`, where each rank processes its slice, and sums the results. Collective. The model
/// must be equal on every rank.
nn::totals evaluate(muster::group& ranks, const predictor& model, std::size_t classes, muster::loader& from);

/// Averages the running statistics over the ranks, so that all ranks have one model. Collective.
void average_statistics(muster::group& ranks, nn::network<float>& net);

/// Sets the running statistics of a rank that joined to the mean of the other ranks' statistics. Collective.
void share_statistics(muster::group& ranks, nn::network<float>& net, bool joined);

}  // namespace images
