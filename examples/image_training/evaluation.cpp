#include "evaluation.hpp"

#include <algorithm>
#include <array>
#include <vector>

#include <muster/comm/collectives/allreduce.hpp>

namespace images {

predictor predictor_of(nn::network<float>& net) {
  return [&net](std::span<const float> images, std::size_t count) {
    return net.forward(images, {.images = count, .training = false});
  };
}

nn::totals evaluate(muster::group& ranks, const predictor& model, std::size_t classes, muster::loader& from) {
  nn::totals mine;
  from.next_epoch();  // Restarts the loader, even after an interrupted evaluation.
  while (const auto batch = from.next({ranks.rank(), ranks.size()})) {
    const auto logits = model(batch.values<float>(), batch.samples.size());
    mine += nn::softmax_cross_entropy<float>(logits, batch.labels, classes, 1, {});
    from.commit();
  }
  std::array<double, 4> sums = {mine.loss, static_cast<double>(mine.images), static_cast<double>(mine.top1),
                                static_cast<double>(mine.top5)};
  muster::allreduce(ranks, std::span(sums), muster::sum);
  return {sums[0], static_cast<std::uint64_t>(sums[1]), static_cast<std::uint64_t>(sums[2]),
          static_cast<std::uint64_t>(sums[3])};
}

void average_statistics(muster::group& ranks, nn::network<float>& net) {
  if (net.statistics().empty()) return;
  muster::allreduce(ranks, net.statistics(), muster::sum);
  for (float& value : net.statistics()) value /= static_cast<float>(ranks.size());
}

void share_statistics(muster::group& ranks, nn::network<float>& net, bool joined) {
  if (net.statistics().empty()) return;
  const float givers = muster::allreduce(ranks, joined ? 0.0f : 1.0f, muster::sum);
  if (givers == 0 || givers == static_cast<float>(ranks.size())) return;
  std::vector<float> mean(net.statistics().size(), 0.0f);
  if (!joined) std::copy(net.statistics().begin(), net.statistics().end(), mean.begin());
  muster::allreduce(ranks, std::span(mean), muster::sum);
  if (!joined) return;
  for (std::size_t k = 0; k < mean.size(); ++k) net.statistics()[k] = mean[k] / givers;
}

}  // namespace images
