#include "netsim/switch_queue.hpp"

#include <ns3/drop-tail-queue.h>
#include <ns3/object-factory.h>

#include <ostream>

namespace gradtool::netsim {
namespace {

using Item = ns3::QueueDiscItem;
constexpr const char* kNoLimit = "4294967295p";  // the queue disc's own limits decide

std::uint8_t tos(const Item& item) {
  std::uint8_t value = 0;
  item.GetUint8Value(ns3::QueueItem::IP_DSFIELD, value);
  return value;
}

/// Packets in the order of arrival, from which any may be taken.
class Store final : public ns3::Queue<Item> {
 public:
  static ns3::TypeId GetTypeId() {
    static const ns3::TypeId id = ns3::TypeId("gradtool::RemainingStore")
                                      .SetParent<ns3::Queue<Item>>()
                                      .SetGroupName("TrafficControl")
                                      .AddConstructor<Store>();
    return id;
  }
  Store() { SetMaxSize(ns3::QueueSize{kNoLimit}); }

  bool Enqueue(ns3::Ptr<Item> item) override { return DoEnqueue(GetContainer().end(), item); }
  ns3::Ptr<Item> Dequeue() override { return empty() ? nullptr : DoDequeue(next()); }
  ns3::Ptr<Item> Remove() override { return empty() ? nullptr : DoRemove(GetContainer().begin()); }
  ns3::Ptr<const Item> Peek() const override { return empty() ? nullptr : DoPeek(next()); }

  /// The packet with the most bytes remaining; of several the one that came last.
  [[nodiscard]] ConstIterator least_urgent() const {
    ConstIterator worst = GetContainer().end();
    std::uint64_t most = 0;
    for (ConstIterator at = GetContainer().begin(); at != GetContainer().end(); ++at) {
      if (const std::uint64_t remaining = tag_of(**at).remaining(); remaining >= most) {
        most = remaining;
        worst = at;
      }
    }
    return worst;
  }
  ns3::Ptr<Item> take(ConstIterator at) { return DoDequeue(at); }

  static RemainingTag tag_of(const Item& item) {
    RemainingTag tag;
    item.GetPacket()->PeekPacketTag(tag);
    return tag;
  }

 private:
  [[nodiscard]] bool empty() const { return GetContainer().empty(); }
  [[nodiscard]] ConstIterator next() const {
    RemainingTag best = tag_of(**GetContainer().begin());
    for (const auto& item : GetContainer()) {
      const RemainingTag tag = tag_of(*item);
      if (tag.remaining() < best.remaining()) best = tag;
    }
    ConstIterator at = GetContainer().begin();
    while (tag_of(**at).flow() != best.flow()) ++at;
    return at;
  }
};

}  // namespace

NS_OBJECT_ENSURE_REGISTERED(TwoThresholdQueue);
NS_OBJECT_ENSURE_REGISTERED(RemainingQueue);

ns3::TypeId TwoThresholdQueue::GetTypeId() {
  static const ns3::TypeId id = ns3::TypeId("gradtool::TwoThresholdQueue")
                                    .SetParent<ns3::QueueDisc>()
                                    .SetGroupName("TrafficControl")
                                    .AddConstructor<TwoThresholdQueue>();
  return id;
}

TwoThresholdQueue::TwoThresholdQueue() : ns3::QueueDisc{ns3::QueueDiscSizePolicy::NO_LIMITS} {}

bool TwoThresholdQueue::CheckConfig() {
  while (GetNInternalQueues() < kBands) {
    auto band = ns3::CreateObject<ns3::DropTailQueue<Item>>();
    band->SetMaxSize(ns3::QueueSize{kNoLimit});
    AddInternalQueue(band);
  }
  return GetNQueueDiscClasses() == 0 && GetNPacketFilters() == 0;
}

bool TwoThresholdQueue::DoEnqueue(ns3::Ptr<Item> item) {
  const std::uint64_t waiting = GetNBytes();
  const std::uint8_t service = tos(*item);
  const bool ecn_capable = (service & 3U) != 0;
  if (waiting + item->GetSize() > limits_.limit) {
    DropBeforeEnqueue(item, kBufferDrop);
    return false;
  }
  if (!ecn_capable && waiting >= limits_.drop) {
    DropBeforeEnqueue(item, kThresholdDrop);
    return false;
  }
  if (ecn_capable && waiting >= limits_.mark) Mark(item, kMark);
  return GetInternalQueue(static_cast<std::size_t>(band_of(service)))->Enqueue(item);
}

ns3::Ptr<Item> TwoThresholdQueue::DoDequeue() {
  for (std::size_t band = 0; band < kBands; ++band) {
    if (auto item = GetInternalQueue(band)->Dequeue()) return item;
  }
  return nullptr;
}

ns3::TypeId RemainingTag::GetTypeId() {
  static const ns3::TypeId id =
      ns3::TypeId("gradtool::RemainingTag").SetParent<ns3::Tag>().AddConstructor<RemainingTag>();
  return id;
}

void RemainingTag::Serialize(ns3::TagBuffer to) const {
  to.WriteU32(flow_);
  to.WriteU64(remaining_);
}

void RemainingTag::Deserialize(ns3::TagBuffer from) {
  flow_ = from.ReadU32();
  remaining_ = from.ReadU64();
}

void RemainingTag::Print(std::ostream& out) const {
  out << "flow " << flow_ << ", " << remaining_ << " bytes remaining";
}

ns3::TypeId RemainingQueue::GetTypeId() {
  static const ns3::TypeId id = ns3::TypeId("gradtool::RemainingQueue")
                                    .SetParent<ns3::QueueDisc>()
                                    .SetGroupName("TrafficControl")
                                    .AddConstructor<RemainingQueue>();
  return id;
}

RemainingQueue::RemainingQueue() : ns3::QueueDisc{ns3::QueueDiscSizePolicy::NO_LIMITS} {}

bool RemainingQueue::CheckConfig() {
  if (GetNInternalQueues() == 0) AddInternalQueue(ns3::CreateObject<Store>());
  return GetNQueueDiscClasses() == 0 && GetNPacketFilters() == 0;
}

bool RemainingQueue::DoEnqueue(ns3::Ptr<Item> item) {
  auto& store = static_cast<Store&>(*GetInternalQueue(0));
  const std::uint64_t remaining = Store::tag_of(*item).remaining();
  while (GetNBytes() + item->GetSize() > limit_) {
    const auto worst = store.least_urgent();
    if (GetNPackets() == 0 || Store::tag_of(**worst).remaining() <= remaining) {
      DropBeforeEnqueue(item, kBufferDrop);
      return false;
    }
    DropAfterDequeue(store.take(worst), kBufferDrop);
  }
  return store.Enqueue(item);
}

ns3::Ptr<Item> RemainingQueue::DoDequeue() {
  return GetInternalQueue(0)->Dequeue();
}

}  // namespace gradtool::netsim
