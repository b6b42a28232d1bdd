// Counts events, one bit each, and puts the durations of calls into a histogram by their logarithm. Counters wrap at 2^32.
module monitor #(
    parameter int COUNTERS = 32,
    parameter int BUCKETS = 24
) (
    input logic clk,
    input logic rst,
    input logic [COUNTERS-1:0] events,
    input logic duration_valid,
    input logic [31:0] duration,
    input logic [4:0] counter_index,
    output logic [31:0] counter,
    input logic [4:0] bucket_index,
    output logic [31:0] bucket
);
  logic [31:0] counters_q[COUNTERS];
  logic [31:0] buckets_q[BUCKETS];
  logic [4:0] logarithm;

  assign counter = counters_q[counter_index];
  assign bucket = (bucket_index < 5'(BUCKETS)) ? buckets_q[bucket_index] : 32'd0;

  always_comb begin
    logarithm = '0;
    for (int i = 0; i < 32; i++) begin
      if (duration[i]) logarithm = (i < BUCKETS) ? 5'(i) : 5'(BUCKETS - 1);
    end
  end

  always_ff @(posedge clk) begin
    for (int i = 0; i < COUNTERS; i++) begin
      if (rst) counters_q[i] <= '0;
      else if (events[i]) counters_q[i] <= counters_q[i] + 32'd1;
    end
    for (int i = 0; i < BUCKETS; i++) begin
      if (rst) buckets_q[i] <= '0;
      else if (duration_valid && logarithm == 5'(i)) buckets_q[i] <= buckets_q[i] + 32'd1;
    end
  end
endmodule
