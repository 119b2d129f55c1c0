#include "evaluation.hpp"

#include <array>

#include <muster/comm/collectives/allreduce.hpp>

namespace images {

nn::totals evaluate(muster::group& ranks, nn::network<float>& net, muster::any_loader& from) {
  nn::totals mine;
  from.next_epoch();  // to its start, also after an evaluation that was cut short
  while (const auto batch = from.next({ranks.rank(), ranks.size()})) {
    const nn::pass now{.images = batch.samples.size(), .training = false};
    const auto logits = net.forward(batch.values<float>(), now);
    mine += nn::softmax_cross_entropy<float>(logits, batch.labels, net.classes(), 1, {});
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

}  // namespace images
