// tx_poller with lines that the host pushes: each is taken once, in order, as its own flow's, and only where there is room for it, and the
// entries of rings stay as they were. Flow 0 has a ring of 4 slots of two lines, read in batches of 4; flow 1 has pushed lines alone, and
// may be off. The host writes and pushes whenever it likes, memory answers in order, whenever it likes.
module tx_poller_pushes_proof (
    input logic clk,
    input logic rst,
    input logic host_writes,
    input logic host_two_lines,
    input logic host_pushes,
    input logic answers,
    input logic read_ready,
    input logic buffer_valid,
    input logic entry_ready,
    input logic [1:0] credit_available
);
  (* anyconst *) logic doorbell_mode;
  (* anyconst *) logic second_enable;
  // Of the first 8 pushed lines: the flow, the bit in which an entry of a ring has its phase, and whether it says that it has two lines.
  (* anyconst *) logic [7:0] push_flows;
  (* anyconst *) logic [7:0] push_phases;
  (* anyconst *) logic [7:0] push_too_long;
  logic [31:0] flow_taken;
  logic credit_take;
  logic [0:0] credit_flow;
  logic buffer_take;
  logic buffer_write;
  logic [10:0] buffer_address;
  logic [511:0] buffer_data;
  logic read;
  logic [31:0] read_address;
  logic data_valid;
  logic [511:0] data;
  logic push_valid;
  logic [0:0] push_flow;
  logic [511:0] push_line;
  logic push_take;
  logic entry_valid;
  nic_pkg::entry_t entry;

  // Entries written to the ring, and of each of the last 4 whether it has a second line; lines pushed, and how many of them are taken.
  logic [7:0] written_q = '0;
  logic [3:0] two_q = '0;
  logic [7:0] taken_q = '0;
  logic [3:0] pushed_q = '0;
  logic [3:0] left_q = '0;
  tx_poller #(
      .FLOWS(2),
      .FLOW_BITS(1),
      .BATCH(4),
      .READS_LOG2(1),
      .FLOW_READS(2)
  ) dut (
      .enable(1'b1),
      .restart(1'b0),
      .restart_flow(1'b0),
      .flow_enable({second_enable, 1'b1}),
      .flow_doorbell_mode({1'b1, doorbell_mode}),
      .flow_base({32'd8, 32'd0}),
      .flow_slots_log2({2{4'd2}}),
      .flow_stride_log2({2{4'd1}}),
      .flow_doorbell({16'd0, 8'd0, written_q}),
      .buffer_id(6'd5),
      .*
  );

  // The line that waits longest. What is beyond its bytes is anything: here, ones.
  logic [2:0] number;
  logic too_long;
  assign number = left_q[2:0];
  assign too_long = push_too_long[number];
  assign push_valid = left_q != pushed_q;
  assign push_flow = push_flows[number];
  always_comb begin
    push_line = '0;
    push_line[0] = push_phases[number];
    push_line[7:4] = nic_pkg::ENTRY_RESPONSE;
    push_line[31:16] = too_long ? 16'd41 : 16'd8;
    push_line[66:64] = number;
    push_line[79] = 1'b1;
    push_line[255:248] = {5'd0, number};
    push_line[511:256] = '1;
  end

  // Reads of the ring that are out, at most 2.
  logic [2:0] first_q = '0;
  logic [2:0] second_q = '0;
  logic [1:0] out_q = '0;
  logic issue;
  assign issue = read && read_ready;
  assign data_valid = answers && out_q != 2'd0;
  logic [1:0] slot;
  logic [7:0] ring_number;
  assign slot = first_q[2:1];
  assign ring_number = written_q - 8'd1 - ((written_q - 8'd1 - 8'(slot)) & 8'd3);
  always_comb begin
    data = '0;
    if (first_q[0]) begin
      data[0] = 1'b1;
      data[15:8] = ring_number;
    end else if (written_q > 8'(slot)) begin
      data[0] = !ring_number[2];
      data[7:4] = nic_pkg::ENTRY_REQUEST;
      data[31:16] = two_q[slot] ? 16'd60 : 16'd8;
      data[71:64] = ring_number;
    end
  end

  // Whether the line that waits could be taken, for how many reads it has waited so, and for how many cycles with no line of memory's.
  logic good;
  logic room;
  logic of_push;
  logic [2:0] reads_q = '0;
  logic [2:0] unread_q = '0;
  assign good = push_flow == 1'b0 || second_enable;
  assign room = buffer_valid && entry_ready && credit_available[push_flow];
  assign of_push = entry.tag[15];
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (rst) begin
      written_q <= '0;
      two_q <= '0;
      taken_q <= '0;
      pushed_q <= '0;
      left_q <= '0;
      out_q <= '0;
      reads_q <= '0;
      unread_q <= '0;
    end else begin
      if (host_writes && 8'(written_q - flow_taken[7:0]) < 8'd4 && written_q < 8'd100) begin
        written_q <= written_q + 8'd1;
        two_q[written_q[1:0]] <= host_two_lines;
      end
      if (host_pushes && pushed_q < 4'd8) pushed_q <= pushed_q + 4'd1;
      if (data_valid) first_q <= (issue && out_q == 2'd1) ? read_address[2:0] : second_q;
      else if (issue && out_q == 2'd0) first_q <= read_address[2:0];
      if (issue && (out_q - 2'(data_valid)) == 2'd1) second_q <= read_address[2:0];
      out_q <= out_q + 2'(issue) - 2'(data_valid);
      assert (out_q <= 2'd2);
      if (issue) assert (read_address < 32'd8);

      // A line is taken where one is, and is an entry then, or dropped because its flow is off. No other entry is one of a pushed line's.
      if (push_take) begin
        left_q <= left_q + 4'd1;
        assert (push_valid);
        assert (entry_valid == good);
      end
      if (entry_valid && of_push) begin
        assert (push_take && good);
        assert (entry.tag[2:0] == number);
        assert (entry.flow == 8'(push_flow));
        assert (entry.lines == 6'd1);
        assert (entry.kind == (too_long ? nic_pkg::ENTRY_BAD : nic_pkg::ENTRY_RESPONSE));
        // Its line is in the buffer, but for what is beyond its bytes.
        assert (buffer_take && buffer_write && entry.buffer == 6'd5 && buffer_address == {6'd5, 5'd0});
        assert (buffer_data[255:0] == push_line[255:0]);
        assert (too_long || buffer_data[511:256] == 256'd0);
      end
      if (entry_valid && !of_push) begin
        taken_q <= taken_q + 8'd1;
        assert (!push_take);
        assert (entry.flow == 8'd0);
        assert (entry.tag[7:0] == taken_q);
        assert (taken_q != written_q);
        assert (entry.kind == nic_pkg::ENTRY_REQUEST);
        assert (entry.lines == (two_q[taken_q[1:0]] ? 6'd2 : 6'd1));
      end
      // Of a ring are the entries of that ring alone.
      assert (flow_taken == {24'd0, taken_q});

      // What is taken has room, and takes of it what is its own.
      if (push_take && good) assert (room && credit_take && credit_flow == push_flow);
      if (buffer_take) assert (credit_take && buffer_valid && entry_ready && credit_available[credit_flow]);
      if (credit_take) assert (buffer_take);

      // A line that could be taken waits for the reads that are out, and for one more; one of a flow that is off waits for no room.
      if (push_valid && (room || !good) && !data_valid) assert (push_take);
      reads_q <= (push_valid && room && good && !push_take) ? reads_q + 3'(issue) : 3'd0;
      assert (reads_q <= 3'd1);
      // Nor do lines that come without end keep a polled ring from being read.
      unread_q <= (!doorbell_mode && out_q == 2'd0 && !issue && read_ready && buffer_valid && entry_ready && credit_available[0])
          ? unread_q + 3'd1 : 3'd0;
      assert (unread_q <= 3'd2);
    end
  end
endmodule
