train.py --dataset_path D --dit_path ,
