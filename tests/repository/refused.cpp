// Errors that a compiler detects: each case is compiled alone, and must be rejected with the words in its comment.
#include <list>
#include <span>
#include <string>
#include <vector>

#include <muster/collectives.hpp>

void mistake(muster::group& world) {
#ifdef case_none  //
  std::vector<float> values(3);
  muster::allreduce(world, values, muster::sum);
  muster::broadcast(world, values, 2);
  (void)world.rank();
#endif
#ifdef case_vector_of_bool  // is_contiguous_memory
  std::vector<bool> flags(3);
  muster::allreduce(world, flags, muster::max);
#endif
#ifdef case_list  // is_contiguous_memory
  std::list<float> values;
  muster::broadcast(world, values, 0);
#endif
#ifdef case_strings  // is_trivially_copyable_element
  std::vector<std::string> names(3);
  muster::broadcast(world, names, 0);
#endif
#ifdef case_object  // is_trivially_copyable_element
  struct owner {
    std::vector<float> values;
  } mine;
  muster::broadcast(world, mine, 0);
#endif
#ifdef case_pointer  // is_no_pointer
  float* values = nullptr;
  muster::broadcast(world, values, 0);
#endif
#ifdef case_large_element  // is_small_enough_for_an_element
  struct page {
    char bytes[4096];
  } pages[2];
  muster::broadcast(world, pages, 0);
#endif
#ifdef case_three_numbers  // has_a_size_that_is_a_power_of_two_up_to_64
  struct sums {
    double sum, count, max;
  } mine[1];
  muster::allreduce(world, mine, [](const sums& a, const sums&) { return a; });
#endif
#ifdef case_sum_of_structs  // combines_two_elements_into_one
  struct pair {
    float a, b;
  } pairs[2];
  muster::allreduce(world, pairs, muster::sum);
#endif
#ifdef case_constant  // can_be_written
  const std::vector<float> values(3);
  muster::allreduce(world, values, muster::sum);
#endif
#ifdef case_temporary  // outlives_the_call
  muster::allreduce_async(world, std::vector<float>(3), muster::sum).wait();
#endif
#ifdef case_two_types  // both buffers hold the same type
  std::vector<float> in(3);
  std::vector<double> out(3);
  muster::allgather(world, in, out);
#endif
#ifdef case_negative_root  // the root of a collective is a rank, from 0
  std::vector<float> values(3);
  muster::broadcast(world, values, -1);
#endif
#ifdef case_negative_root_of_a_value  // the root of a collective is a rank, from 0
  int value = 3;
  muster::broadcast(world, value, -1);
#endif
#ifdef case_negative_root_of_a_gather  // the root of a collective is a rank, from 0
  std::vector<int> values(3);
  muster::gather(world, values, values, -2);
#endif
}
