// rx_writer: every order is carried out once, with its own lines. Slots of a ring are given in order, each once; at most one is filled later than its
// successors, that of the long order which is under way, and the header line is its last. A short order waits for one line of a long one at
// most, and a long order that has begun to write for one short one before each line. Two flows of 4 slots of 4 lines; orders come, lines are there and memory takes them whenever they like.
module rx_writer_proof (
    input logic clk,
    input logic rst,
    input logic short_comes,
    input logic long_comes,
    input logic line_comes,
    input logic write_ready,
    input nic_pkg::receive_t short_any,
    input nic_pkg::receive_t long_any
);
  logic short_valid;
  logic short_take;
  nic_pkg::receive_t short_order;
  logic long_valid;
  logic long_take;
  nic_pkg::receive_t long_order;
  logic line_valid;
  logic line_take;
  logic [511:0] line;
  logic write;
  logic [31:0] write_address;
  logic [511:0] write_data;
  logic written;
  logic [0:0] written_flow;
  rx_writer #(
      .FLOWS(2),
      .FLOW_BITS(1)
  ) dut (
      .restart(1'b0),
      .restart_flow(1'b0),
      // The second ring begins at line 16, areas at line 256.
      .flow_base({32'd16, 32'd0}),
      .flow_slots_log2({2{4'd2}}),
      .flow_stride_log2({2{4'd2}}),
      .*
  );

  // An order that has come stays until it is taken.
  logic short_waits_q = 1'b0;
  logic long_waits_q = 1'b0;
  nic_pkg::receive_t short_q;
  nic_pkg::receive_t long_q;
  assign short_valid = short_waits_q || short_comes;
  assign long_valid = long_waits_q || long_comes;
  assign short_order = short_waits_q ? short_q : short_any;
  assign long_order = long_waits_q ? long_q : long_any;

  // Of the long order: lines taken out of the buffer, and lines written. A line of the buffer says how many came before it.
  logic [2:0] popped_q;
  logic [2:0] lines_q;
  logic [5:0] all_popped_q;
  assign line_valid = line_comes;
  always_comb begin
    line = '0;
    line[5:0] = all_popped_q;
    line[6] = 1'b1;
  end

  // Of each flow: slots filled, and whether one before the last of them is still to be filled, and which.
  logic [4:0] filled_q[2];
  logic [1:0] hole_q;
  logic [4:0] hole_slot_q;

  logic short_writes;
  logic header;
  logic [0:0] flow;
  logic [4:0] slot;
  logic [4:0] long_slot;
  logic keeps;
  logic [2:0] line_index;
  assign header = write && write_ready && written;
  // It was taken with what it has written.
  assign short_writes = short_take && short_order.deliver;
  assign flow = short_writes ? short_order.flow[0] : long_order.flow[0];
  assign long_slot = hole_q[long_order.flow[0]] ? hole_slot_q : filled_q[long_order.flow[0]];
  assign keeps = long_order.store || long_order.raw;
  assign line_index = keeps ? lines_q : lines_q + 3'd1;
  function automatic logic [31:0] line_of(input logic [0:0] ring, input logic [4:0] count);
    line_of = {27'd0, ring, count[1:0], 2'd0};
  endfunction

  // The slot to which a header line belongs: the next, or the one after it if the long order has begun with the next.
  logic [4:0] next_slot;
  logic is_next;
  assign next_slot = filled_q[flow] + 5'(hole_q[flow]);
  assign is_next = write_address == line_of(flow, next_slot);
  assign slot = !short_writes ? long_slot : is_next ? next_slot : next_slot + 5'd1;

  // Lines of the long order since the short one came, and slots of short ones since the long order wrote its last line, while its next is there.
  logic [1:0] short_waited_q;
  logic [1:0] long_waited_q;
  initial assume (rst);
  always_comb begin
    assume (short_order.flow < 8'd2 && long_order.flow < 8'd2);
    // What the NIC takes for short, and what for long.
    assume (short_order.lines <= 6'd1 && !short_order.store && !short_order.raw);
    assume (long_order.lines >= 6'd1 && long_order.lines <= 6'd3);
    assume (long_order.lines > 6'd1 || keeps);
    assume (!(long_order.store && long_order.raw));
    assume (!long_order.payload || (long_order.deliver && !keeps));
    assume (!long_order.raw || long_order.deliver);
    assume (long_order.store_address == 32'd256);
  end
  always_ff @(posedge clk) begin
    short_waits_q <= short_valid && !short_take && !rst;
    long_waits_q <= long_valid && !long_take && !rst;
    short_q <= short_order;
    long_q <= long_order;
    if (rst) begin
      popped_q <= '0;
      lines_q <= '0;
      all_popped_q <= '0;
      filled_q[0] <= '0;
      filled_q[1] <= '0;
      hole_q <= '0;
      hole_slot_q <= '0;
      short_waited_q <= '0;
      long_waited_q <= '0;
    end else begin
      if (line_take) begin
        assert (line_valid && long_valid);
        all_popped_q <= all_popped_q + 6'd1;
        popped_q <= popped_q + 3'd1;
      end
      // What is written is a header line, or the next line of the long order.
      if (header) begin
        if (short_writes) begin
          assert (write_data[191:1] == short_order.head[191:1]);
          assert (write_data[511:192] == (short_order.payload ? short_order.first[511:192] : 320'd0));
          if (!is_next) begin
            // The slot before it is the long order's.
            assert (!hole_q[flow] && long_valid && long_order.deliver && long_order.flow[0] == flow);
            hole_q[flow] <= 1'b1;
            hole_slot_q <= filled_q[flow];
          end
        end else begin
          assert (long_take && long_order.deliver);
          assert (write_data[191:1] == long_order.head[191:1]);
          assert (write_data[511:192] == (long_order.payload ? long_order.first[511:192] : 320'd0));
          hole_q[flow] <= 1'b0;
        end
        filled_q[flow] <= filled_q[flow] + 5'd1;
        assert (write_address == line_of(flow, slot));
        assert (written_flow == flow);
        assert (write_data[0] == !slot[2]);
      end else if (write && write_ready) begin
        assert (long_valid && line_index < long_order.lines[2:0]);
        assert (write_address == (long_order.store ? 32'd256 : line_of(long_order.flow[0], long_slot)) + 32'(line_index)
            + 32'(long_order.raw));
        assert (write_data == ((line_index == 3'd0) ? long_order.first : line));
        assert (line_take == (line_index != 3'd0));
        lines_q <= lines_q + 3'd1;
      end
      if (written) assert (header);
      // An order is taken when all of it has been done.
      if (short_take) assert (short_valid && (!short_order.deliver || header));
      if (long_take) begin
        assert (long_valid && long_order.deliver == (header && !short_writes));
        assert (popped_q + 3'(line_take) == long_order.lines[2:0] - 3'd1);
        assert (lines_q + 3'(write && write_ready && !header) == (keeps ? long_order.lines[2:0]
            : long_order.payload ? long_order.lines[2:0] - 3'd1 : 3'd0));
        popped_q <= '0;
        lines_q <= '0;
      end
      // Nobody waits for long.
      if (!short_valid || short_take) short_waited_q <= '0;
      else if (write && write_ready) short_waited_q <= short_waited_q + 2'd1;
      assert (short_waited_q <= 2'd1);
      if (lines_q == 3'd0 || !line_valid || (write && write_ready && !short_writes)) long_waited_q <= '0;
      else if (header) long_waited_q <= long_waited_q + 2'd1;
      assert (long_waited_q <= 2'd1);
    end
  end
endmodule
