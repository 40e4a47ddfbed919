// The lock of a proxy's shared data under the reads of the filter.
//
//   lock THREADS SECONDS BYTES
//
// Proxy-Wasm hosts keep shared data in one table behind one mutex for all workers, and a read copies the value while it
// holds the mutex (proxy-wasm-cpp-host, src/shared_data.cc). This program does the same with such a table: THREADS
// threads read random records of BYTES bytes for SECONDS. It prints the number of reads, and the CPU of all threads,
// ns.

#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t kTableBytes = 64 << 20;  // of all values: more than processor caches hold
constexpr uint32_t kMaxRecords = 25000;   // the buckets of 100,000 objects

class SharedData {
 public:
  bool get(std::string_view vm, std::string_view key, std::pair<std::string, uint32_t>* result) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto table = tables_.find(std::string(vm));
    if (table == tables_.end()) return false;
    auto entry = table->second.find(std::string(key));
    if (entry == table->second.end()) return false;
    *result = entry->second;
    return true;
  }

  void set(std::string_view vm, std::string_view key, std::string value) {
    std::lock_guard<std::mutex> lock(mutex_);
    tables_[std::string(vm)][std::string(key)] = {std::move(value), 1};
  }

 private:
  std::mutex mutex_;
  std::map<std::string, std::unordered_map<std::string, std::pair<std::string, uint32_t>>> tables_;
};

std::string place(uint32_t index) {
  return std::string{1, char(index), char(index >> 8), char(index >> 16), char(index >> 24)};
}

int64_t thread_cpu_ns() {
  timespec t;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t(t.tv_sec) * 1'000'000'000 + t.tv_nsec;
}

void measure(int threads, double seconds, size_t bytes) {
  SharedData data;
  uint32_t records = std::min<size_t>(kMaxRecords, kTableBytes / bytes);
  for (uint32_t i = 0; i < records; i++) data.set("gatehouse", place(i), std::string(bytes, 'x'));

  std::atomic<bool> stop{false};
  std::atomic<int64_t> reads{0}, cpu{0};
  std::vector<std::thread> running;
  for (int t = 0; t < threads; t++) {
    running.emplace_back([&, seed = uint64_t(t) * 7919 + 1]() mutable {
      int64_t mine = 0, cpu_begin = thread_cpu_ns();
      while (!stop.load(std::memory_order_relaxed)) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        std::pair<std::string, uint32_t> value;
        if (!data.get("gatehouse", place(uint32_t(seed >> 33) % records), &value) || value.first.size() != bytes) abort();
        mine++;
      }
      reads += mine;
      cpu += thread_cpu_ns() - cpu_begin;
    });
  }
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
  stop = true;
  for (auto& thread : running) thread.join();
  std::printf("%lld %lld\n", (long long)reads.load(), (long long)cpu.load());
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: %s THREADS SECONDS BYTES\n", argv[0]);
    return 2;
  }
  measure(std::atoi(argv[1]), std::atof(argv[2]), size_t(std::atoll(argv[3])));
}
