// The NIC with a look into it: for each situation that a test should bring about, a bit that says whether it is so in this cycle. Each line of the
// list names the module that the situation is of, and `provost-nic-model` reads the names from here.
module nic_covered #(
    parameter int FLOWS = 4,
    parameter int BATCH = 4
) (
    input logic clk,
    input logic rst,
    // Time, in ticks of 64 ns.
    input logic [31:0] now,
    // Registers.
    input logic csr_write,
    input logic [15:0] csr_address,
    input logic [31:0] csr_write_data,
    output logic [31:0] csr_read_data,
    // Lines that the host pushes to a flow.
    input logic push_valid,
    output logic push_ready,
    input logic [7:0] push_flow,
    input logic [nic_pkg::LINE_BITS-1:0] push_line,
    // Lines of host memory. Reads are answered in order, and see what was written before.
    output logic host_read,
    input logic host_read_ready,
    output logic [31:0] host_read_address,
    input logic host_data_valid,
    input logic [nic_pkg::LINE_BITS-1:0] host_data,
    output logic host_write,
    input logic host_write_ready,
    output logic [31:0] host_write_address,
    output logic [nic_pkg::LINE_BITS-1:0] host_write_data,
    // The wire.
    output logic tx_valid,
    input logic tx_ready,
    output logic [nic_pkg::LINE_BITS-1:0] tx_data,
    output logic [nic_pkg::LINE_BYTES_LOG2:0] tx_bytes,
    output logic tx_last,
    output logic [47:0] tx_remote,
    input logic rx_valid,
    input logic [nic_pkg::LINE_BITS-1:0] rx_data,
    input logic [nic_pkg::LINE_BYTES_LOG2:0] rx_bytes,
    input logic rx_last,
    input logic rx_spoiled,
    input logic [47:0] rx_remote,
    // Whether each situation is so, the last of the list in bit 0.
    output logic [138:0] covered
);
  nic #(
      .FLOWS(FLOWS),
      .BATCH(BATCH)
  ) dut (
      .*
  );

  assign covered = {
      // access_list: a range denies
      dut.rules.matched[0],
      // access_list: a hash denies
      dut.rules.matched[3],
      // access_list: several rules deny
      (dut.rules.matched & (dut.rules.matched - 1'b1)) != '0,
      // buffer_pool: one is taken and one given at once
      dut.pool.take && dut.pool.give != '0,
      // buffer_pool: several are given at once
      (dut.pool.give & (dut.pool.give - 1'b1)) != '0,
      // buffer_pool: half of them are out
      dut.pool.taken >= 7'd32,
      // byte_mask: a whole line
      rx_valid && dut.receiver.mask.bytes == 16'(nic_pkg::LINE_BYTES),
      // byte_mask: a part of a line
      rx_valid && dut.receiver.mask.bytes < 16'(nic_pkg::LINE_BYTES),
      // byte_mask: one byte of a line
      rx_valid && dut.receiver.mask.bytes == 16'd1,
      // call_table: a call ends while it is sent again
      dut.table_of_calls.end_call && dut.table_of_calls.sending_q[dut.table_of_calls.index],
      // call_table: a buffer is free as its packet has left, its call having ended
      (dut.table_of_calls.sent_bit & dut.table_of_calls.ended_q) != '0,
      // call_table: a call's time is up
      dut.table_of_calls.due,
      // call_table: a request is sent again
      dut.table_of_calls.send_again,
      // call_table: packets of a response are asked for again
      dut.table_of_calls.ask_again,
      // call_table: the server is at work
      dut.table_of_calls.at_work,
      // call_table: a response comes in parts
      dut.table_of_calls.advance,
      // call_table: the wait is doubled six times
      dut.table_of_calls.send_again && dut.table_of_calls.doublings == 3'd6,
      // client_slot: no slot is free
      dut.core.act_entry && !dut.core.free_valid,
      // client_slot: the last slot is free
      dut.core.entry_request && dut.core.free_slot == 3'd7,
      // client_slot: a response to a slot's call
      dut.core.response && dut.core.packet_current,
      // client_slot: a response to another call
      dut.core.response && !dut.core.packet_current,
      // entry_check: an entry makes no sense
      dut.core.refuse_entry && dut.core.entry_error == nic_pkg::ERROR_DESCRIPTOR,
      // entry_check: an entry is of no such connection
      dut.core.refuse_entry && dut.core.entry_error == nic_pkg::ERROR_CONNECTION,
      // entry_check: an entry is too large
      dut.core.refuse_entry && dut.core.entry_error == nic_pkg::ERROR_TOO_LARGE,
      // entry_check: an entry finds no slot
      dut.core.refuse_entry && dut.core.entry_error == nic_pkg::ERROR_BUSY,
      // entry_check: an entry comes too late
      dut.core.refuse_entry && dut.core.entry_error == nic_pkg::ERROR_STALE,
      // entry_check: a request is good
      dut.core.act_entry && dut.core.entry_good && dut.core.entry.kind == nic_pkg::ENTRY_REQUEST,
      // entry_check: a response is good
      dut.core.act_entry && dut.core.entry_good && dut.core.entry.kind == nic_pkg::ENTRY_RESPONSE,
      // entry_check: a raw packet is good
      dut.core.act_entry && dut.core.entry_good && dut.core.entry.kind == nic_pkg::ENTRY_RAW,
      // entry_check: a fragment is good
      dut.core.act_entry && dut.core.entry_good && dut.core.entry.kind == nic_pkg::ENTRY_FRAGMENT,
      // fifo: full
      !dut.entries.push_ready,
      // fifo: a push and a pop at once
      dut.entries.push && dut.entries.push_ready && dut.entries.pop && dut.entries.pop_valid,
      // fifo: empty again
      dut.entries.pop && dut.entries.level == 1,
      // host_port: two reads at once
      dut.host.poll_read && dut.host.cache_read,
      // host_port: as many reads out as can be
      !dut.host.waiting_ready,
      // host_port: two writes at once
      dut.host.receive_write && dut.host.cache_write,
      // host_port: a status waits for another write
      dut.host.status_write && !dut.host.status_write_ready,
      // key_hash: a key at the beginning
      dut.core.request && dut.hasher.offset == 5'd0,
      // key_hash: a key further on
      dut.core.request && dut.hasher.offset > 5'd0 && dut.hasher.offset <= 5'd24,
      // key_hash: a key that would end beyond the payload
      dut.core.request && dut.hasher.offset > 5'd24,
      // line_ram: one line is written while another is read
      dut.buffers.write && dut.transmitter.beat && dut.buffers.write_address != dut.buffers.read_address,
      // line_sum: a carry
      rx_valid && dut.receiver.adder.folded[16],
      // line_sum: a sum over several lines
      rx_valid && !dut.receiver.is_first,
      // message_shape: a packet amid a message
      dut.core.act_packet && dut.core.several_good && !dut.core.several_last,
      // message_shape: the last of a message
      dut.core.act_packet && dut.core.several_good && dut.core.several_last,
      // message_shape: seven packets
      dut.core.several_good && dut.core.several_packets == 3'd7,
      // message_shape: a length that lies
      (dut.core.request || dut.core.response) && dut.core.several && !dut.core.several_good,
      // missing_packets: all are here
      dut.core.response_stored && dut.core.response_complete,
      // missing_packets: a gap
      dut.core.response_stored && !dut.core.response_complete && dut.core.missing_beyond != '0,
      // missing_packets: a gap of a request
      dut.core.request && dut.core.slot_store && dut.core.missing_beyond != '0,
      // monitor: PACKETS_RECEIVED
      dut.events[nic_registers_pkg::COUNT_PACKETS_RECEIVED],
      // monitor: PACKETS_SENT
      dut.events[nic_registers_pkg::COUNT_PACKETS_SENT],
      // monitor: DROPPED_LENGTH
      dut.events[nic_registers_pkg::COUNT_DROPPED_LENGTH],
      // monitor: DROPPED_CHECK
      dut.events[nic_registers_pkg::COUNT_DROPPED_CHECK],
      // monitor: DROPPED_KIND
      dut.events[nic_registers_pkg::COUNT_DROPPED_KIND],
      // monitor: DROPPED_BUFFER
      dut.events[nic_registers_pkg::COUNT_DROPPED_BUFFER],
      // monitor: DROPPED_TOKEN
      dut.events[nic_registers_pkg::COUNT_DROPPED_TOKEN],
      // monitor: DROPPED_STALE
      dut.events[nic_registers_pkg::COUNT_DROPPED_STALE],
      // monitor: DROPPED_PROTOCOL
      dut.events[nic_registers_pkg::COUNT_DROPPED_PROTOCOL],
      // monitor: DROPPED_ROOM
      dut.events[nic_registers_pkg::COUNT_DROPPED_ROOM],
      // monitor: ENTRIES_TAKEN
      dut.events[nic_registers_pkg::COUNT_ENTRIES_TAKEN],
      // monitor: ENTRIES_REFUSED
      dut.events[nic_registers_pkg::COUNT_ENTRIES_REFUSED],
      // monitor: REQUESTS_SENT
      dut.events[nic_registers_pkg::COUNT_REQUESTS_SENT],
      // monitor: REQUESTS_DELIVERED
      dut.events[nic_registers_pkg::COUNT_REQUESTS_DELIVERED],
      // monitor: REQUESTS_DENIED
      dut.events[nic_registers_pkg::COUNT_REQUESTS_DENIED],
      // monitor: REQUESTS_LIMITED
      dut.events[nic_registers_pkg::COUNT_REQUESTS_LIMITED],
      // monitor: REQUESTS_REPEATED
      dut.events[nic_registers_pkg::COUNT_REQUESTS_REPEATED],
      // monitor: CALLS_COMPLETED
      dut.events[nic_registers_pkg::COUNT_CALLS_COMPLETED],
      // monitor: CALLS_FAILED
      dut.events[nic_registers_pkg::COUNT_CALLS_FAILED],
      // monitor: RETRANSMISSIONS
      dut.events[nic_registers_pkg::COUNT_RETRANSMISSIONS],
      // monitor: CONNECTION_HITS
      dut.events[nic_registers_pkg::COUNT_CONNECTION_HITS],
      // monitor: CONNECTION_MISSES
      dut.events[nic_registers_pkg::COUNT_CONNECTION_MISSES],
      // monitor: CREDITS_FORGED
      dut.events[nic_registers_pkg::COUNT_CREDITS_FORGED],
      // monitor: a call of less than 2^12 cycles
      dut.counters.duration_valid && dut.counters.logarithm < 5'd12,
      // monitor: a call of 2^12 cycles or more
      dut.counters.duration_valid && dut.counters.logarithm >= 5'd12,
      // nic: a push to no flow
      push_valid && !dut.push_good,
      // nic: an order of one line
      dut.receive_valid && !dut.receive_is_long,
      // nic: an order of several lines
      dut.receive_valid && dut.receive_is_long,
      // order_queue: no room for two packets to send
      !dut.transmit_room_for_two,
      // order_queue: no room for two long orders
      !dut.long_room_for_two,
      // packet_rx: a packet too long
      rx_valid && rx_last && dut.receiver.long_now,
      // packet_rx: a head that is cut
      rx_valid && rx_last && dut.receiver.short_header,
      // packet_rx: a packet of one line
      dut.receiver.good && dut.receiver.is_first,
      // packet_rx: a packet of several lines
      dut.receiver.good && !dut.receiver.is_first,
      // packet_rx: lines that are taken back
      dut.receiver.line_rollback && !dut.receiver.is_first,
      // packet_tx: a raw packet
      dut.transmitter.command_take && dut.transmitter.command.raw,
      // packet_tx: a packet of one line
      dut.transmitter.command_take && dut.transmitter.line_last == 6'd0,
      // packet_tx: a packet of several lines
      dut.transmitter.command_take && dut.transmitter.line_last != 6'd0,
      // packet_tx: a head alone
      dut.transmitter.command_take && !dut.transmitter.command.payload,
      // packet_tx: a packet whose buffer goes back
      dut.transmitter.command_take && dut.transmitter.command.release_buffer,
      // receive_order: a request of one packet
      dut.core.deliver_request && !dut.core.several,
      // receive_order: a request of several packets
      dut.core.deliver_request && dut.core.several,
      // receive_order: a response to be given again
      dut.core.deliver_repeat && !dut.core.response_wanted,
      // receive_order: packets of a response wanted
      dut.core.deliver_repeat && dut.core.response_wanted,
      // receive_order: packets of a request wanted
      dut.core.deliver_wanted,
      // receive_order: a response of one packet
      dut.core.deliver_response && dut.core.response_fits && !dut.core.several,
      // receive_order: a response of several packets
      dut.core.deliver_response && dut.core.response_fits && dut.core.several,
      // receive_order: a response that fits nowhere
      dut.core.deliver_response && !dut.core.response_fits,
      // receive_order: a packet for the host as it is
      dut.core.deliver_managed,
      // receive_order: a call given up
      dut.core.give_up && dut.core.call_current,
      // receive_order: a call whose connection has ended
      dut.core.give_up && !dut.core.call_current,
      // receive_order: a packet that nobody gets
      dut.receive_valid && !dut.receive.deliver,
      // registers: a flow's
      dut.csr.flow_write,
      // registers: a rule's
      csr_write && dut.csr.in_rules,
      // registers: a bucket's
      csr_write && dut.csr.in_buckets,
      // registers: of no flow
      csr_write && dut.csr.in_flows && !dut.csr.flow_write,
      // registers: a flow starts anew
      dut.csr.restart,
      // registers: slots are freed
      dut.csr.freed,
      // registers: a command waits
      dut.csr.command_valid && !dut.csr.command_take,
      // rx_writer: a short order amid a long one
      dut.writer.short_take && dut.writer.long_valid && dut.writer.state_q != 2'd0,
      // rx_writer: both want to write
      dut.writer.short_wants && dut.writer.long_wants,
      // rx_writer: lines are stored in an area
      dut.writer.line_done && dut.writer.long_order.store,
      // rx_writer: lines of a packet that nobody gets are skipped
      dut.writer.line_take && !dut.writer.line_is_written,
      // rx_writer: a ring comes round
      dut.writer.written && dut.writer.phase == 1'b0,
      // rx_writer: a line is waited for
      dut.writer.line_wanted && !dut.writer.line_there,
      // status_writer: a flow's
      dut.status.write && dut.status.flow_q == '0,
      // status_writer: another flow's
      dut.status.write && dut.status.flow_q == 2'd1,
      // transmit_order: to a stranger
      dut.transmit_valid && dut.core.order.stranger,
      // transmit_order: a Pong
      dut.transmit_valid && dut.core.order.ping,
      // transmit_order: denied by the list
      dut.transmit_valid && dut.core.order.deny && dut.core.order.denied_by_list,
      // transmit_order: denied by a bucket
      dut.transmit_valid && dut.core.order.deny && !dut.core.order.denied_by_list,
      // transmit_order: asking for a response
      dut.transmit_valid && dut.core.order.asks,
      // transmit_order: a credit return
      dut.core.request && dut.transmit_valid && !dut.core.order.deny && dut.core.order.beyond == '0,
      // transmit_order: a credit return that says what is here beyond
      dut.core.request && dut.transmit_valid && !dut.core.order.deny && dut.core.order.beyond != '0,
      // transmit_order: a response whose time is known
      dut.core.entry_response && dut.core.order.held_known,
      // transmit_order: a response that took too long to say
      dut.core.entry_response && !dut.core.order.held_known,
      // transport_core: an event right after another
      dut.core.start && dut.core.state_q == 2'd2,
      // transport_core: a line is waited for
      dut.core.state_q == 2'd1 && !dut.core.answer,
      // transport_core: an event waits for the queues
      dut.core.chosen && dut.core.state_q == 2'd0 && !dut.core.receive_room_for_two,
      // transport_core: a packet and an entry at once
      dut.core.start && dut.core.packet_valid && dut.core.entry_valid,
      // transport_core: a command loads
      dut.core.act_command && dut.core.command == nic_pkg::COMMAND_LOAD,
      // transport_core: a command closes
      dut.core.act_command && dut.core.command == nic_pkg::COMMAND_CLOSE,
      // tx_poller: an entry is pushed
      dut.poller.take_now && dut.poller.push_now,
      // tx_poller: an entry is read
      dut.poller.take_now && !dut.poller.push_now,
      // tx_poller: an entry waits for what it needs
      dut.poller.header_now && dut.poller.written && !dut.poller.can_take,
      // tx_poller: a slot that is not written
      dut.poller.data_now && dut.poller.header_now && !dut.poller.written,
      // tx_poller: an entry of several lines
      dut.poller.body_last,
      // tx_poller: several flows want lines
      (dut.poller.wants & (dut.poller.wants - 1'b1)) != '0,
      // tx_poller: a flow starts anew while its lines are read
      dut.poller.restart && dut.poller.state_q[dut.poller.restart_flow] != 2'd0
  };
endmodule
