// tx_poller: every entry that the host writes is taken once, in order, and none that it has not written. One flow, a ring of 4 slots of
// one line or two, batches of 2; the host writes whenever it has room, memory answers whenever it likes.
module tx_poller_proof (
    input logic clk,
    input logic rst,
    input logic host_writes,
    input logic host_two_lines,
    input logic answers,
    input logic read_ready,
    input logic buffer_valid,
    input logic entry_ready,
    input logic [0:0] credit_available
);
  (* anyconst *) logic doorbell_mode;
  logic [15:0] flow_taken;
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
  logic push_take;
  logic entry_valid;
  nic_pkg::entry_t entry;

  // What the host has written: how many entries, and of each of the last 4 whether it has a second line.
  logic [7:0] written_q = '0;
  logic [3:0] two_q = '0;
  logic [15:0] doorbell_q = '0;
  tx_poller #(
      .FLOWS(1),
      .FLOW_BITS(1),
      .BATCH(2),
      .READS_LOG2(1),
      // As many as there can be, so that a batch ends within the bound.
      .FLOW_READS(2)
  ) dut (
      .enable(1'b1),
      .restart(1'b0),
      .restart_flow(1'b0),
      .flow_enable(1'b1),
      .flow_doorbell_mode(doorbell_mode),
      .flow_base(32'd0),
      .flow_slots_log2(4'd2),
      .flow_stride_log2(4'd1),
      .flow_doorbell(doorbell_q),
      .buffer_id(6'd0),
      .push_valid(1'b0),
      .push_flow(1'b0),
      .push_line(512'd0),
      .*
  );

  // Reads that are out, at most 2: the address of each.
  logic [2:0] first_q = '0;
  logic [2:0] second_q = '0;
  logic [1:0] out_q = '0;
  assign data_valid = answers && out_q != 2'd0;

  // What memory has at the address of the first read: its slot's last entry, or nothing.
  logic [1:0] slot;
  logic [7:0] behind;
  logic [7:0] number;
  logic ever;
  assign slot = first_q[2:1];
  // The last entry with a number of this slot.
  assign behind = (written_q - 8'd1 - 8'(slot)) & 8'd3;
  assign number = written_q - 8'd1 - behind;
  assign ever = written_q > 8'(slot);
  always_comb begin
    data = '0;
    if (first_q[0]) begin
      // A second line may hold anything; it holds what would be a new header in this lap and the number.
      data[0] = 1'b1;
      data[15:8] = number;
    end else if (ever) begin
      data[0] = !number[2];
      data[7:4] = nic_pkg::ENTRY_REQUEST;
      data[31:16] = two_q[slot] ? 16'd60 : 16'd8;
      data[71:64] = number;
    end
  end

  logic [7:0] taken_q = '0;
  logic host_may;
  // The host counts what the NIC says that it has taken.
  assign host_may = 8'(written_q - flow_taken[7:0]) < 8'd4 && written_q < 8'd100;
  initial assume (rst);
  always_ff @(posedge clk) begin
    if (rst) begin
      written_q <= '0;
      two_q <= '0;
      doorbell_q <= '0;
      out_q <= '0;
      taken_q <= '0;
    end else begin
      if (host_writes && host_may) begin
        written_q <= written_q + 8'd1;
        two_q[written_q[1:0]] <= host_two_lines;
        doorbell_q <= doorbell_q + 16'd1;
      end
      if (data_valid) first_q <= (read && read_ready && out_q == 2'd1) ? read_address[2:0] : second_q;
      else if (read && read_ready && out_q == 2'd0) first_q <= read_address[2:0];
      if (read && read_ready && (out_q - 2'(data_valid)) == 2'd1) second_q <= read_address[2:0];
      out_q <= out_q + 2'(read && read_ready) - 2'(data_valid);
      assert (out_q <= 2'd2);
      if (entry_valid) begin
        taken_q <= taken_q + 8'd1;
        // Once, in order, and nothing that was not written.
        assert (entry.tag[7:0] == taken_q);
        assert (taken_q != written_q);
        assert (entry.kind == nic_pkg::ENTRY_REQUEST);
        // With all its lines.
        assert (entry.lines == (two_q[taken_q[1:0]] ? 6'd2 : 6'd1));
      end
      // Resources are taken only where there are some, one of each for an entry.
      if (credit_take) assert (credit_available[0] && buffer_valid && buffer_take && buffer_write);
      if (buffer_take) assert (credit_take);
      assert (flow_taken[7:0] == taken_q);
    end
  end
endmodule
